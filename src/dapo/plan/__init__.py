"""What a run will need before it is started: memory, draws, time, money. Pure arithmetic; loads no torch."""
