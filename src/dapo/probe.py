"""A few tokens by the engine's newest weights, where no batch has any: the gap to the learner is still measured.

With pipeline.swap = "between_draws" every step is trained on tokens of the version before, whose log-probs differ
from the learner's because the policy moved. So once the engine has new weights, it samples a short draw that nobody
trains on, and the learner, which holds the same weights at that moment, looks at its tokens.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dapo.batch import make_batch
from dapo.config.schema import Config
from dapo.flight import Flight
from dapo.metrics import gap_metrics
from dapo.parts import Parts
from dapo.sampling import rollout_params
from dapo.types import Batch, Group, Prompt, Rollout, Score, TrainState, Verdict

RESPONSES, TOKENS = 8, 16  # of the draw, at most
DRAW = 2**32 - 1  # its index: the last there is, past those of any run


def probed(parts: Parts, state: TrainState) -> tuple[dict[str, float], float]:
    """(mismatch/* of a short draw, findings of the self-check); nothing where batches show the gap themselves."""
    pipeline = parts.config.pipeline
    if not pipeline.max_staleness or pipeline.swap != "between_draws" or not (state.ahead and state.ahead.groups):
        return {}, 0.0
    batch = short_draw(parts, state.ahead.groups[0].prompt)
    gap = gap_metrics(parts.learner.logprobs(batch), batch.engine_logprobs, batch.loss_mask)
    mean = gap["mismatch/logprob_abs_mean"]
    return gap, 0.0 if math.isnan(mean) else parts.checks.probed(state, mean)


def short_draw(parts: Parts, prompt: Prompt) -> Batch:
    """A few tokens of a few responses, as rows. Nothing else is in flight."""
    config: Config = parts.config
    params = rollout_params(config)
    params = replace(params, n=min(RESPONSES, params.n), max_new_tokens=min(TOKENS, params.max_new_tokens))
    flight = Flight(parts.engine, params, config.engine.reruns)
    try:
        flight.submit(DRAW, prompt)
        done = []
        while flight:
            done += flight.poll()
    finally:
        flight.cancel()
    nothing = Score(verdict=Verdict.GRADED, correct=None, reward=0.0)
    rollouts = tuple(Rollout(response=response, text="", score=nothing, overlong=0.0) for response in done[0].responses)
    return make_batch([Group(draw=DRAW, prompt=prompt, rollouts=rollouts)], parts.eos_ids, config)
