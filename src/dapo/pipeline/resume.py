"""Whether the settings still fit what a checkpoint holds of the next step."""

from __future__ import annotations

from dapo.config.schema import Config
from dapo.errors import ResumeRefused
from dapo.sampling import keep_mask
from dapo.types import Collected, TrainState

UNTIL = "until the run has trained on it"


def check_ahead(config: Config, state: TrainState) -> None:
    """Raises ResumeRefused, naming the setting, where what was sampled ahead could not be trained on as it is."""
    ahead, pipeline = state.ahead, config.pipeline
    if ahead is None or not (ahead.groups or ahead.short):
        return
    was = "between_draws" if ahead.whole else "in_flight"
    if not pipeline.max_staleness or pipeline.swap != was:
        raise ResumeRefused(
            f'the checkpoint holds what was sampled ahead with pipeline.swap = "{was}", and pipeline.max_staleness = '
            f'{pipeline.max_staleness}, pipeline.swap = "{pipeline.swap}" could not use it; keep both as they were '
            f"{UNTIL}"
        )
    _check_sizes(config, ahead)
    if ahead.whole:
        _check_kept(config, ahead)
    _check_late(config, ahead, state.version + (state.pending is not None))


def _check_late(config: Config, ahead: Collected, version: int) -> None:
    """version: what the next step starts from. Groups wait their turn, so many a step."""
    sampling, most = config.sampling, config.pipeline.max_staleness
    kept = zip(ahead.groups, keep_mask(ahead.groups, sampling.filter), strict=True)
    trained = ahead.kept if ahead.whole else [group for group, keeps in kept if keeps]
    for place, group in enumerate(trained):
        start = version + place // sampling.prompts_per_step
        late = max((start - v for r in group.rollouts for v, _ in r.response.token_versions), default=0)
        if late > most:
            raise ResumeRefused(
                f"the checkpoint holds groups for later steps, and one would be trained on {late} versions late, "
                f"over pipeline.max_staleness = {most}; keep pipeline.max_staleness, sampling.prompts_per_step and "
                f"sampling.filter as they were {UNTIL}"
            )


def _check_sizes(config: Config, ahead: Collected) -> None:
    sampling = config.sampling
    least = sampling.min_responses_per_prompt or sampling.responses_per_prompt
    for group in ahead.groups:
        if not least <= len(group.rollouts) <= sampling.responses_per_prompt:
            raise ResumeRefused(
                f"sampling.responses_per_prompt = {sampling.responses_per_prompt}, but the checkpoint holds groups of "
                f"{len(group.rollouts)} for the next step; keep it {UNTIL}"
            )


def _check_kept(config: Config, ahead: Collected) -> None:
    sampling = config.sampling
    groups = zip(ahead.groups, keep_mask(ahead.groups, sampling.filter), strict=True)
    kept = [group.draw for group, keeps in groups if keeps][: sampling.prompts_per_step]
    enough = len(kept) == sampling.prompts_per_step or ahead.short
    if not enough or kept != [group.draw for group in ahead.kept]:
        raise ResumeRefused(
            f"the checkpoint holds the next step's batch of {len(ahead.kept)} groups, which is not what "
            f'sampling.prompts_per_step = {sampling.prompts_per_step} and sampling.filter = "{sampling.filter}" '
            f"would keep; leave both as they were {UNTIL}"
        )
