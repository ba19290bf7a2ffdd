"""The parts of a run as actors of a Ray cluster, behind the same Protocols. Nothing but this room knows Ray."""
