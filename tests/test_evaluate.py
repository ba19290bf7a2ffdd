"""Evaluation: avg@k over problems, its interval over the population, and draws of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats

from dapo.config import Config, load_config
from dapo.errors import EngineError
from dapo.evals.evaluation import Evaluation, figures_of_rows, set_line
from dapo.evals.figures import SetFigures
from dapo.evals.intervals import population_interval, t_interval
from dapo.evals.run import evaluate
from dapo.grading import GroupGrader
from dapo.reward import Scorer
from dapo.rollout.scripted import Order, ScriptedEngine
from dapo.types import Finish, FinishedDraw, Prompt, SamplingParams, Score, Verdict

EOS = 9
WORDS = {0: "", 1: "Answer: 7", 2: "Answer: 8", 3: "hm"}


def config(**layer: Any) -> Config:
    """k = 4."""
    base = {"model.path": "m", "data.source": "d.jsonl", "eval.k": 4}
    return load_config(base, {key.replace("__", "."): value for key, value in layer.items()})


class Recording(ScriptedEngine):
    """Notes what was asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[tuple[int, str, SamplingParams]] = []

    def submit(self, draw: int, prompt: Prompt, params: SamplingParams) -> None:
        self.asked.append((draw, prompt.id, params))
        super().submit(draw, prompt, params)


def prompts(count: int, source: str = "test") -> list[Prompt]:
    """Problems p0, p1, ... whose answer is 7."""
    ids = np.zeros(1, np.int32)
    return [Prompt(id=f"p{i}", messages=None, text="q", answer="7", source=source, token_ids=ids) for i in range(count)]


def right(*counts: int) -> Callable[[int, Prompt, int], list[int]]:
    """Problem i has counts[i] right responses; response g takes g + 2 tokens."""
    return lambda draw, prompt, g: [0] * g + [1 if g < counts[int(prompt.id[1:])] else 2, EOS]


def run(
    script: Any,
    problems: Sequence[Prompt],
    made: Config | None = None,
    *,
    order: Order = "fifo",
    engine: Any = None,
) -> SetFigures:
    """One evaluation of one set."""
    (figures,) = run_sets(script, {"test": problems}, made, order=order, engine=engine).sets
    return figures


def run_sets(
    script: Any,
    sets: dict[str, Sequence[Prompt]],
    made: Config | None = None,
    *,
    order: Order = "fifo",
    engine: Any = None,
    **more: Any,
) -> Evaluation:
    """One evaluation."""
    made = made or config()
    scorer = Scorer(made.reward)
    grader = GroupGrader(
        made, scorer.score, lambda ids: "".join(WORDS[i] for i in ids), [EOS], equal=lambda prompt: scorer.equal
    )
    return evaluate(engine or ScriptedEngine(script, order=order), grader, sets, made, **more)


@pytest.mark.parametrize("order", ["fifo", "lifo", "shortest"])
def test_avg_at_k_by_hand(order: Order) -> None:
    """Problem means 0, 1/2, 1, 1/4: mean 7/16.

    s^2 = sum (x - 7/16)^2 / 3 = (49 + 1 + 81 + 9)/256/3 = 140/768; t(.975, 3) = 3.182446;
    half = 3.182446 * .426956 / 2 = .679383.
    """
    got = run(right(0, 2, 4, 1), prompts(4), order=order)
    assert got.accuracy == 7 / 16
    assert t_interval([0, 0.5, 1, 0.25], bounds=None) == pytest.approx((7 / 16 - 0.679383, 7 / 16 + 0.679383), abs=1e-6)
    assert got.interval == (0.0, 1.0)  # cut to where a share can be
    assert (got.problems, got.k) == (4, 4)
    assert [result.right for result in got.results] == [0, 2, 4, 1]
    assert [result.id for result in got.results] == ["p0", "p1", "p2", "p3"]
    assert got.length_mean_tokens == 3.5  # 2, 3, 4, 5
    assert (got.parsed_fraction, got.truncated_fraction) == (1.0, 0.0)


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.5, 0.25, 0.75, 1.0, 0.0], [i / 32 for i in range(30)]])
def test_the_interval_against_scipy(values: list[float]) -> None:
    """scipy.stats.t.interval at n - 1 degrees of freedom around the mean, with the standard error of ddof 1."""
    expected = scipy.stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert t_interval(values, bounds=None) == pytest.approx(expected, abs=1e-12)
    assert t_interval(values) == pytest.approx((max(expected[0], 0), min(expected[1], 1)), abs=1e-12)


@pytest.mark.parametrize("values", [[], [0.5]])
def test_no_interval_from_less_than_two(values: list[float]) -> None:
    """One problem says nothing about a population."""
    assert all(math.isnan(bound) for bound in t_interval(values))


def test_equal_problems_have_an_interval_of_no_width() -> None:
    """n - 1 in the denominator, no epsilon anywhere."""
    assert t_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)


@pytest.mark.parametrize("n", [1, 2, 30, 500])
def test_nothing_right_is_not_certainty(n: int) -> None:
    """All 0, or all 1: the bound that a mean must be under for so many zeros to be likelier than 2.5%."""
    low, high = population_interval([0.0] * n)
    assert low == 0
    assert (1 - high) ** n == pytest.approx(0.025)
    assert population_interval([1.0] * n) == pytest.approx((1 - high, 1.0))


def test_fractions_over_responses() -> None:
    """Unparsed is not parsed (and wrong), truncated is LENGTH."""
    made = config(eval__max_response_tokens=3, reward__overlong="none")
    # Responses: right, unparsed, right after 2 words of padding cut away with its answer, wrong.
    texts = [[1, EOS], [3, EOS], [0, 0, 0, 1, EOS], [2, EOS]]
    got = run(lambda draw, prompt, g: texts[g], prompts(2), made)
    assert (got.accuracy, got.parsed_fraction, got.truncated_fraction) == (0.25, 0.5, 0.25)
    assert got.length_mean_tokens == (2 + 2 + 3 + 2) / 4


def test_the_penalty_is_no_part_of_accuracy() -> None:
    """avg@k is correctness, whatever the length."""
    made = config(sampling__max_response_tokens=4, reward__overlong="soft", reward__overlong_buffer_tokens=4)
    assert run(lambda draw, prompt, g: [0, 0, 1, EOS], prompts(2), made).accuracy == 1.0


def test_its_own_parameters() -> None:
    """eval.* and not sampling.*; the training limit where eval has none."""
    engine = Recording(right(1, 1))
    made = config(eval__temperature=0.5, eval__top_p=0.9, eval__max_response_tokens=77, sampling__stop=["x"])
    run(None, prompts(2), made, engine=engine)
    assert [(draw, name) for draw, name, _ in engine.asked] == [(0, "p0"), (1, "p1")]
    assert {(p.temperature, p.top_p, p.max_new_tokens, p.n, p.stop) for _, _, p in engine.asked} == {
        (0.5, 0.9, 77, 4, ("x",))
    }
    engine = Recording(right(1))
    run(
        None,
        prompts(1),
        config(sampling__max_response_tokens=99, sampling__temperature=0.3, reward__overlong="none"),
        engine=engine,
    )
    (asked,) = (params for _, _, params in engine.asked)
    assert (asked.max_new_tokens, asked.temperature, asked.top_p) == (99, 1.0, 0.7)


def test_draws_of_its_own() -> None:
    """The same draws at every evaluation, whatever the training seed; never those of training with an equal seed."""

    def seeds(made: Config) -> tuple[list[int], set[int]]:
        engine = Recording(right(1, 1, 1))
        run(None, prompts(3), made, engine=engine)
        return [draw for draw, _, _ in engine.asked], {params.seed for _, _, params in engine.asked}

    base = seeds(config())
    assert base == seeds(config()) == seeds(config(train__seed=6))
    assert base[0] == [0, 1, 2]
    assert len(base[1]) == 1
    assert base[1] != seeds(config(eval__seed=6))[1]
    for seed in range(20):
        assert seed not in seeds(config(eval__seed=seed, train__seed=seed))[1]


def test_an_aborted_draw_is_run_again_whole() -> None:
    """Failure goes with length: skipping it would raise the figure."""
    tries: list[int] = []

    def script(draw: int, prompt: Prompt, g: int) -> tuple[list[int], Finish]:
        tries.append(draw)
        if draw == 1 and g == 3 and tries.count(1) < 8:
            return [0], Finish.ABORT
        return [1 if g == 0 else 2, EOS], Finish.STOP

    engine = ScriptedEngine(script)
    got = run(None, prompts(3), engine=engine)
    assert engine.submitted == [0, 1, 2, 1]
    assert [result.samples for result in got.results] == [4, 4, 4]
    assert got.spent.engine_failures == 1
    assert got.accuracy == 0.25
    assert got.truncated_fraction == 0.0


@pytest.mark.parametrize("shift", [100, -2, 1])
def test_an_engine_that_returns_an_unknown_draw(shift: int) -> None:
    """Law 7: a leftover of training is never graded as an evaluation problem."""

    class Lying(ScriptedEngine):
        def poll(self) -> list[FinishedDraw]:
            return [FinishedDraw(draw=d.draw + shift, responses=d.responses) for d in super().poll()]

    with pytest.raises(EngineError):
        run(None, prompts(2), engine=Lying(right(1, 1)))


def test_by_source() -> None:
    """avg@k of each source, over its own problems."""
    problems = [*prompts(2, "aime"), *prompts(4, "easy")[2:]]
    assert run(right(0, 1, 4, 2), problems).by_source == {"aime": 1 / 8, "easy": 6 / 8}


def test_metrics_and_line() -> None:
    """Names with units, and one line for a person."""
    got = run_sets(right(0, 4), {"test": prompts(2)})
    metrics = got.metrics()
    assert set(metrics) == {
        "eval/accuracy",
        "eval/pass_at_k",
        "eval/maj_at_k",
        "eval/low",
        "eval/high",
        "eval/reward_mean",
        "eval/parsed_fraction",
        "eval/truncated_fraction",
        "eval/length_mean_tokens",
        "eval/engine_failures",
        "time/eval_s",
    }
    assert metrics["eval/accuracy"] == 0.5
    assert metrics["time/eval_s"] >= 0
    (line,) = got.lines()
    assert line.startswith("test: avg@4 over 2 problems: 50.0% (95% interval 0.0% to 100.0%)")
    assert "\n" not in line


def test_the_summary_is_plain_data() -> None:
    """It survives strict JSON, and says what kind of interval each is."""
    got = run(right(0, 4, 2), prompts(3))
    summary = json.loads(json.dumps(got.summary(), allow_nan=False))
    assert summary["accuracy"] == 0.5
    assert summary["intervals_95"]["population, over problem means"] == list(got.interval)
    assert summary["intervals_95"]["this set alone, sampling noise"] == list(got.set_interval)
    assert summary["by_source"] == {"test": 0.5}
    assert (summary["problems"], summary["k"]) == (3, 4)


def test_nothing_to_evaluate_has_no_figure() -> None:
    """NaN, never a quiet 0."""
    assert math.isnan(run(right(), []).accuracy)
    assert figures_of_rows([]).sets == ()


def test_graded_rewards_have_no_accuracy() -> None:
    """Floats without right and wrong give a mean reward, not an accuracy of 0."""
    graded = GroupGrader(
        config(),
        lambda prompt, texts, ids: [Score(verdict=Verdict.GRADED, correct=None, reward=0.25) for _ in texts],
        lambda ids: "",
        [EOS],
    )
    (got,) = evaluate(ScriptedEngine(right(0, 4)), graded, {"test": prompts(2)}, config()).sets
    assert math.isnan(got.accuracy)
    assert got.reward_mean == 0.25
    assert "mean reward 0.250" in set_line(got)
    assert not got.pass_at
    assert not got.maj_at
    json.dumps(got.summary(), allow_nan=False)


def test_an_engine_that_only_aborts_is_given_up() -> None:
    """Running an aborted draw again has a bound."""
    engine = ScriptedEngine(lambda draw, prompt, g: ([0], Finish.ABORT))
    with pytest.raises(EngineError, match="aborted draw 0 4 times"):
        evaluate(
            engine, GroupGrader(config(), Scorer(config().reward).score, str, [EOS]), {"test": prompts(1)}, config()
        )
