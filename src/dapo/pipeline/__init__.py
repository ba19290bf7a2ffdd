"""Who fills a step's batch, and when: in turns with the updates, or while they run."""

from dapo.config.schema import Config
from dapo.grading import GroupGrader
from dapo.pipeline.ahead import Ahead
from dapo.pipeline.base import Cores, Supply, Turns
from dapo.pipeline.stream import Stream
from dapo.rollout.base import RolloutEngine
from dapo.sampling import Collector, PromptSource

__all__ = ["Ahead", "Cores", "Stream", "Supply", "Turns", "make_supply"]


def make_supply(
    config: Config, engine: RolloutEngine, grader: GroupGrader, prompt: PromptSource, threads: int | None = None
) -> Supply:
    """What `pipeline` asks for.

    Args:
        config, engine, grader, prompt: see Collector.
        threads: torch's, where engine and learner compute on one processor; beside each other each gets half.
    """
    cores = Cores(None if threads is None else max(1, threads // 2))
    if not config.pipeline.max_staleness:
        return Turns(Collector(config, engine, grader, prompt))
    if config.pipeline.swap == "in_flight":
        return Stream(config, engine, grader, prompt, cores)
    return Ahead(Collector(config, engine, grader, prompt), config.train.num_steps, cores)
