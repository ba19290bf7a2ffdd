"""k samples of each problem of each set, graded, into figures; kept as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from dapo.config.schema import Config
from dapo.errors import Interrupted, UserError
from dapo.evals.evaluation import Evaluation, set_figures_of
from dapo.evals.results import result_rows, results_of, without_texts
from dapo.flight import Flight
from dapo.grading import GroupGrader
from dapo.records import Row
from dapo.rng import derive_seed
from dapo.rollout.base import RolloutEngine
from dapo.types import Prompt, SamplingParams

EVALUATION = 1  # salt of the evaluation's own draws
Sets = Mapping[str, Sequence[Prompt]]


class Store(Protocol):
    """Where finished problems go, and where those of an interrupted evaluation are found."""

    def rows(self, name: str) -> Mapping[int, Sequence[Row]]:
        """Of a set: the rows of each problem that was sampled already, by its place in the set."""

    def add(self, name: str, rows: Sequence[Row]) -> None:
        """The rows of one more problem, on disk when this returns."""


def evaluate(
    engine: RolloutEngine,
    grader: GroupGrader,
    sets: Sets,
    config: Config,
    *,
    step: int = 0,
    store: Store | None = None,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[str, int, int], None] = lambda name, done, problems: None,
) -> Evaluation:
    """Samples eval.k responses for each problem and grades them, set by set.

    Draw i of a set is about its problem i, under the evaluation's own seed: the same draws at every
    evaluation, whatever other sets there are.

    Args:
        engine: samples; holds the policy to be evaluated.
        grader: of the responses.
        sets: problems by set.
        config: its `eval` section says how.
        step: written into the rows.
        store: keeps finished problems, and has those of an interrupted evaluation.
        stopped: asked between two polls.
        progress: told set, problems done and problems, after each problem.

    Raises:
        Interrupted: when `stopped` says so. What was finished is in the store.
    """
    found = []
    for name, prompts in sets.items():
        kept = dict(store.rows(name)) if store is not None else {}
        for draw, rows in kept.items():
            if rows[0]["prompt_id"] != prompts[draw].id:
                raise UserError(f"{name}: the samples of problem {draw + 1} are another problem's; take the file away")
        flight = Flight(engine, sampling_params(config), config.engine.reruns)
        try:
            for draw, prompt in enumerate(prompts):
                if draw not in kept:
                    flight.submit(draw, prompt)
            for draw, rows in _finished(flight, grader, name, prompts, step, stopped):
                if store is not None:
                    store.add(name, rows)
                kept[draw] = rows if store is None else without_texts(rows)
                progress(name, len(kept), len(prompts))
        finally:
            flight.cancel()
        rows = [row for draw in range(len(prompts)) for row in kept[draw]]
        found.append(set_figures_of(name, results_of(rows).get(name, []), config.eval.k))
    return Evaluation(tuple(found))


def _finished(
    flight: Flight,
    grader: GroupGrader,
    name: str,
    prompts: Sequence[Prompt],
    step: int,
    stopped: Callable[[], bool],
) -> Iterator[tuple[int, list[Row]]]:
    """Problems as they finish, graded: (draw, rows). The first row says what was spent since the last one."""
    last, failures = time.perf_counter(), 0
    while flight:
        if stopped():
            raise Interrupted("the evaluation was given up")
        for finished in flight.poll():
            group = grader.group(finished, prompts[finished.draw])
            rows = result_rows(group, name, step, grader.equal(group.prompt))
            now = time.perf_counter()
            rows[0] |= {"seconds": now - last, "engine_failures": flight.failures - failures}
            last, failures = now, flight.failures
            yield finished.draw, rows


def sampling_params(config: Config) -> SamplingParams:
    """How an evaluation samples: `eval.*`, with the limit and the stop strings of training where it has none."""
    settings = config.eval
    return SamplingParams(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_new_tokens=settings.max_response_tokens or config.sampling.max_response_tokens,
        n=settings.k,
        seed=derive_seed(settings.seed, EVALUATION),
        stop=config.sampling.stop,
    )
