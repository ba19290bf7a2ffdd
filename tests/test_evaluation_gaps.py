"""What mutants of the evaluation's code got away with: notes, orders, labels, edges."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo import evaluator
from dapo.cli.evaluate import Asked, _asked, _evaluator, _picked, _sample
from dapo.cli.progress import first_and_last
from dapo.cli.show import columns_that_fit
from dapo.config import Config
from dapo.config.check import problems as problems_of
from dapo.config.load import resolve
from dapo.config.sets import evaluation_sources
from dapo.data.load import check_evaluation, check_validation, set_notes
from dapo.errors import Interrupted, UserError
from dapo.evals.compare_tables import comparison_notes, comparison_tables, probability, reading
from dapo.evals.comparison import AtKDifference, Measured, check_comparable, compare_set, over_seeds, pair_up
from dapo.evals.evaluation import Evaluation, figures_of_rows
from dapo.evals.figures import SetFigures, sparse
from dapo.evals.intervals import FEW
from dapo.evals.progress import curves, progress_tables
from dapo.evals.results import Result, plain, results_of
from dapo.evals.settings import changed_names
from dapo.evals.store import EvaluationDirectory
from dapo.evals.tables import evaluation_tables, notes, percent
from dapo.metrics import score
from dapo.rollout.scripted import ScriptedEngine
from dapo.run import checkpoint
from dapo.run.summary import _answers, _figures, _title
from dapo.targets import config_of_model, is_run, split_step
from dapo.types import Finish, Prompt
from helpers_run import write_rows
from test_checkpoint import flip_a_byte, save
from test_evaluation_sets import (
    EOS,
    config,
    counted,
    directory,
    graders,
    prompts,
    rows_of,
    run,
    says,
    settings,
)

Rows = list[dict[str, Any]]


def row(draw: int, g: int, right: bool | None, **more: Any) -> dict[str, Any]:
    """A graded sample of set a."""
    verdict = {True: "correct", False: "wrong", None: "graded"}[right]
    found = {"set": "a", "draw": draw, "g": g, "prompt_id": f"p{draw}", "question": f"q{draw}", "problem": f"q{draw}"}
    found |= {"answer": "7", "source": "s", "correct": right, "reward": 1.0 if right else -1.0, "verdict": verdict}
    found |= {"tokens": 3, "finish": "stop", "extracted": "7" if right else "1", "phrases": [], "text": "7"}
    return found | more


def rows_with(*right: int, k: int = 4, **more: Any) -> Rows:
    """Problem i has right[i] of k samples right."""
    return [row(i, g, g < count, **more) for i, count in enumerate(right) for g in range(k)]


def figures(rows: Rows) -> SetFigures:
    """Of set a."""
    return figures_of_rows(rows).named("a")


# --- figures ------------------------------------------------------------------------------------------


def test_the_question_is_the_problem_without_its_wording() -> None:
    """And what was asked where the problem is not known."""
    assert Result(rows=[row(0, 0, True, question="Solve: 3 + 4")]).question == "q0"
    assert Result(rows=[row(0, 0, True, question="Solve: 3 + 4", problem=None)]).question == "Solve: 3 + 4"


def test_a_problem_with_a_sample_that_nobody_judged_has_no_share() -> None:
    """Nor has its set an accuracy; the summary says null, not 0."""
    mixed = figures([*rows_with(2, 2), row(2, 0, True), row(2, 1, None), row(2, 2, True), row(2, 3, True)])
    assert not mixed.results[2].graded
    assert math.isnan(mixed.accuracy)
    assert mixed.summary()["per_problem"][2]["right"] is None
    assert mixed.summary()["per_problem"][1]["right"] == 2


def test_no_infinity_reaches_json() -> None:
    """In whatever it is wrapped."""
    assert plain({"a": [math.inf, (math.nan, 1.5)], "b": -math.inf}) == {"a": [None, [None, 1.5]], "b": None}


def test_where_warnings_begin() -> None:
    """Fewer than ten problems; less than five problems' worth on one side, and on which."""
    assert sparse([0.5] * FEW) == ""
    assert sparse([0.5] * (FEW - 1)) == f"only {FEW - 1} problems; use more"
    assert "1.0 problems' worth of samples are right" in sparse([0.0] * 19 + [1.0])
    assert "1.0 problems' worth of samples are wrong" in sparse([1.0] * 19 + [0.0])


def test_at_is_of_the_largest_k() -> None:
    """pass@k and maj@k in metrics are those of eval.k, not of one sample."""
    got = run({"a": prompts(6)})
    assert got.named("a").at("pass") == got.metrics()["eval/pass_at_k"] == got.named("a").pass_at[-1].value
    assert got.named("a").at("pass") > got.named("a").accuracy
    assert got.named("a").at("maj") == got.named("a").maj_at[-1].value


def test_equal_problems_have_no_bootstrap() -> None:
    """An interval of no width would claim certainty; that over the population is the one for this set alone."""
    got = figures(rows_with(2, 2, 2))
    assert all(math.isnan(bound) for bound in got.bootstrap)
    assert got.interval == got.set_interval
    assert got.interval[0] < 0.5 < got.interval[1]


def test_lengths_verdicts_and_rewards_by_hand() -> None:
    """Right ones are short; one timeout and two errors; mean rewards may lie under 0."""
    rows = [row(0, 0, True, tokens=2), row(0, 1, False, tokens=9), row(1, 0, False, tokens=9, verdict="timeout")]
    rows += [row(1, 1, False, tokens=5, verdict="error"), row(2, 0, False, verdict="error", tokens=7), row(2, 1, True)]
    got = figures(rows)
    assert (got.length_right_tokens, got.length_wrong_tokens) == (2.5, 7.5)
    assert (got.timeout_fraction, got.error_fraction) == (1 / 6, 2 / 6)
    low, high = figures(rows_with(0, 0, 1)).reward_interval
    assert low < -1 / 3 - 2 / 3 < high
    said = notes(Evaluation((got,)))
    assert "a: WARNING: 33.3% of samples could not be graded; they count as wrong" in said
    assert "a: WARNING: intervals over the population may hold less often than 95%: only 3 problems; use more" in said
    assert not any("could not be graded" in note for note in notes(figures_of_rows(rows_with(1, 2))))


def test_what_can_be_detected_goes_by_its_own_name() -> None:
    """In figures.json and in the notes; over the population it takes a larger difference."""
    got = figures(rows_with(*[0, 4, 8, 16] * 8, k=16))
    assert got.detectable_set < got.detectable
    assert got.summary()["detectable_difference"] == {
        "this set alone": got.detectable_set,
        "population, unpaired": got.detectable,
    }
    said = next(note for note in notes(Evaluation((got,))) if "smallest difference" in note)
    assert f"{100 * got.detectable_set:.1f} points for this set alone" in said
    assert f"{100 * got.detectable:.1f} points over the population, unpaired" in said


def test_metrics_have_the_bounds_the_right_way_round() -> None:
    """low is low."""
    got = run({"a": prompts(12)})
    assert (got.metrics()["eval/low"], got.metrics()["eval/high"]) == got.named("a").interval
    assert got.metrics()["eval/low"] < got.metrics()["eval/accuracy"] < got.metrics()["eval/high"]


def test_tables_keep_their_columns() -> None:
    """A | in a question is no new column; median and p90 stand apart; 0.4375 is one number however it was summed."""
    got = figures_of_rows([row(i, 0, True, tokens=i + 1, source="x|y") for i in range(11)])
    (table,) = [table for table in evaluation_tables(got) if table.title == "responses"]
    cells = dict(zip(table.heads, table.rows[0], strict=True))
    assert (cells["median"], cells["p90"]) == ("6.0", "10.0")
    piped = type(table)("t", ["a|b", "c"], [["1|2", "3"]]).markdown()
    assert r"| a\|b | c |" in piped
    assert r"| 1\|2 | 3 |" in piped
    assert percent(math.nextafter(0.4375, 0)) == percent(0.4375) == "43.8%"


# --- sampling -------------------------------------------------------------------------------------------


def test_failures_and_seconds_are_counted_once() -> None:
    """Two aborted draws are two failures, and the seconds of the rows add up to what passed."""
    tries: Counter[int] = Counter()

    def script(draw: int, prompt: Prompt, g: int) -> tuple[list[int], Finish]:
        tries[draw] += g == 0
        aborted = draw in (1, 2) and tries[draw] == 1
        return ([1], Finish.ABORT) if aborted else ([7, EOS], Finish.STOP)

    began = time.perf_counter()
    got = run({"a": prompts(4)}, engine=ScriptedEngine(script)).named("a")
    assert got.spent.engine_failures == 2
    assert 0 <= got.spent.seconds <= time.perf_counter() - began


def test_progress_counts_what_is_done(tmp_path: Path) -> None:
    """In whatever order problems come, and with those of before."""
    told: list[tuple[str, int, int]] = []
    store = directory(tmp_path / "e")
    again = {"store": store, "progress": lambda *one: told.append(one)}
    asked = iter(range(100))
    sets: dict[str, Sequence[Prompt]] = {"a": prompts(3)}
    with pytest.raises(Interrupted):
        run(sets, engine=ScriptedEngine(says, order="lifo"), stopped=lambda: next(asked) >= 1, **again)
    run(sets, engine=ScriptedEngine(says, order="lifo"), **again)
    assert told == [("a", 1, 3), ("a", 2, 3), ("a", 3, 3)]
    store.release()


def test_an_interrupted_evaluation_leaves_nothing_in_flight() -> None:
    """The engine goes on to training: what it still samples would be found there."""

    class Noting(ScriptedEngine):
        gone: Collection[int] = ()

        def cancel(self, draws: Collection[int]) -> int:
            self.gone = sorted(draws)
            return super().cancel(draws)

    engine = Noting(says)
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        run({"a": prompts(3)}, engine=engine, stopped=lambda: next(asked) >= 1)
    assert engine.gone == [1, 2]


# --- on disk --------------------------------------------------------------------------------------------


def test_who_only_reads_cuts_nothing(tmp_path: Path) -> None:
    """dapo compare beside a running evaluation sees half a problem, and leaves it to who is writing it."""
    store = directory(tmp_path / "e")
    run({"a": prompts(2)}, store=store)
    file = tmp_path / "e" / "samples" / "a.jsonl"
    with file.open("ab") as handle:
        handle.write(b'{"set": "a", "dr')
    data = file.read_bytes()
    assert sorted(EvaluationDirectory(tmp_path / "e").rows("a")) == [0, 1]
    assert file.read_bytes() == data
    assert sorted(store.rows("a")) == [0, 1]
    assert file.read_bytes() == data[: data.rindex(b"\n") + 1]
    store.release()


def test_samples_are_read_in_the_order_of_the_set(tmp_path: Path) -> None:
    """However they came."""
    store = directory(tmp_path / "e")
    run({"a": prompts(4)}, store=store, engine=ScriptedEngine(says, order="lifo"))
    assert [row["draw"] for row in store.all_rows()][::4] == [0, 1, 2, 3]
    store.release()


@pytest.mark.parametrize("damage", [{"draw": 6}, {"verdict": None}, {"finish": 3}, {"reward": True}])
def test_a_row_that_figures_can_not_be_made_of_is_named(damage: dict[str, Any], tmp_path: Path) -> None:
    """A place after the last problem (a has 6), and fields without which a figure would be a quiet 0."""
    store = directory(tmp_path / "e")
    store.add("a", [row(0, g, True) | damage for g in range(4)])
    with pytest.raises(UserError, match=r"a\.jsonl, line 1: damaged"):
        store.rows("a")
    store.release()


def test_a_folder_with_nothing_but_a_lock_is_free(tmp_path: Path) -> None:
    """What an evaluation leaves that died before its first word."""
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / ".lock").write_text("")
    place = EvaluationDirectory.place("m", str(tmp_path / "e"))
    place.hold()
    assert place.begin(settings()) == 0
    place.release()


def test_nothing_that_was_sampled_is_forgotten(tmp_path: Path) -> None:
    """forget() is for an evaluation that never had a sample."""
    store = directory(tmp_path / "e")
    run({"a": prompts(1)}, store=store)
    store.forget()
    assert (tmp_path / "e" / "settings.json").is_file()
    store.release()
    other = directory(tmp_path / "f")
    other.forget()
    assert not (tmp_path / "f").exists()


def test_half_a_character_is_no_reason_to_lose_the_figures(tmp_path: Path) -> None:
    """A question with a lone surrogate, in figures.md."""
    store = directory(tmp_path / "e")
    store.finish(figures_of_rows(rows_with(1, problem="\ud83d")), "| \ud83d |")
    assert (tmp_path / "e" / "figures.md").read_text(encoding="utf-8") == "| \\ud83d |"
    store.release()


def test_latest_is_the_one_begun_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By settings.json, whatever the folders are called."""
    monkeypatch.chdir(tmp_path)
    for name, age in (("b", 20), ("a", 10), ("c", 30)):
        directory_of = EvaluationDirectory(Path("evals") / name)
        directory_of.hold()
        directory_of.begin(settings())
        directory_of.release()
        os.utime(Path("evals") / name / "settings.json", (1e9 - age, 1e9 - age))
    assert EvaluationDirectory.open("latest").path.name == "a"


def test_other_reward_functions_are_another_evaluation(tmp_path: Path) -> None:
    """Samples graded by the file's older text are not gone on with."""
    asked = settings() | {"reward": {"function_code": "1"}}
    store = EvaluationDirectory(tmp_path / "e")
    store.hold()
    store.begin(asked)
    with pytest.raises(UserError, match=r"reward\.function_code"):
        store.begin(asked | {"reward": {"function_code": "2"}})
    store.release()


# --- comparisons ------------------------------------------------------------------------------------------


def test_what_is_allowed_goes_by_the_field_of_a_section() -> None:
    """Not by what stands within it."""
    one, other = ({"chat_template_kwargs": {"enable_thinking": value}} for value in (True, False))
    assert list(changed_names({"prompt": one}, {"prompt": other})) == ["chat_template_kwargs"]


@pytest.mark.parametrize(("problems", "said"), [(5, "open"), (6, "rose")])
def test_alike_differences_need_six_problems(problems: int, said: str) -> None:
    """The sign test: 2 * 2^-6 is under 5%, 2 * 2^-5 is not."""
    nan = math.nan
    one = AtKDifference(k=2, before=0.0, after=1.0, difference=1.0, low=nan, high=nan, problems=problems)
    assert one.direction == said


def test_holm_steps_down_and_stops() -> None:
    """0 -> 5 of 8 has p = 0.026: beyond chance after one that is far beyond it, not beside two others like it."""
    after = compare_set("a", counted(0, 0, k=8), counted(8, 5, k=8, label="B"))
    assert after.beyond_chance == (2, 0)
    assert compare_set("a", counted(0, 0, 0, k=8), counted(5, 5, 5, k=8, label="B")).beyond_chance == (0, 0)


def test_movers_are_sorted_by_how_far_they_went() -> None:
    """Up or down; each way as many are shown as was asked for."""
    one = compare_set("a", counted(4, 0, 1, 1), counted(0, 2, 2, 1, label="B"))
    assert [mover.id for mover in one.movers] == ["p0", "p1", "p2"]
    (table,) = [table for table in comparison_tables("A", "B", [one], 1) if table.title.startswith("a: problems")]
    assert [row[0] for row in table.rows] == ["q1", "q0"]


def test_a_problem_is_paired_once() -> None:
    """Where other data are allowed and one question stands twice."""
    twice = results_of([*rows_with(4), *(row(1, g, False, prompt_id="p0") for g in range(4))])
    first = Measured(label="A", settings=settings(sets__a={"problems": 2, "digest": "x"}), results=twice)
    pairs, left_out = pair_up("a", first, counted(2, label="B"))
    assert [(x.draw, y.draw) for x, y in pairs] == [(0, 0)]
    assert left_out == 1


def test_votes_on_one_side_alone_are_not_compared() -> None:
    """maj@k needs both."""
    voted = results_of([row | {"vote": 0 if row["correct"] else 1} for row in rows_with(1, 2, 3)])
    first = Measured(label="A", settings=settings(), results=voted)
    second = Measured(label="B", settings=settings(), results=results_of(rows_with(1, 2, 3)))
    assert compare_set("a", first, second).maj_at == ()
    assert compare_set("a", second, first).maj_at == ()
    assert len(compare_set("a", first, first).maj_at) == 3


def test_graded_floats_are_refused() -> None:
    """There is no accuracy to compare, of two or over seeds."""
    graded = Measured(label="A", settings=settings(), results=results_of([row(i, 0, None) for i in range(3)]))
    with pytest.raises(UserError, match="say nothing of right and wrong"):
        compare_set("a", graded, graded)
    with pytest.raises(UserError, match="say nothing of right and wrong"):
        over_seeds("a", [graded, graded])


def test_every_one_of_a_group_is_checked() -> None:
    """Not the first two alone."""
    other = counted(1, label="C", sampling__temperature=0.5)
    with pytest.raises(UserError, match=r"A and C can't be compared: sampling\.temperature"):
        check_comparable([counted(1), counted(1, label="B"), other], [], seeds=True)


def test_the_seed_reaches_the_resampling() -> None:
    """Another one, other bounds; the same one, the same."""
    pair = counted(*[0, 1, 2, 3, 4, 1] * 3), counted(*[1, 3, 2, 4, 3, 0] * 3, label="B")
    zero, again, one = (compare_set("a", *pair, seed=seed).paired for seed in (0, 0, 1))
    assert (zero.bootstrap_low, zero.p_value) == (again.bootstrap_low, again.p_value)
    assert zero.bootstrap_low != one.bootstrap_low


def test_what_stands_beside_a_comparison() -> None:
    """Lengths and warnings of the right side, what is left out, how many sets, that one sample can't tell."""
    long = Measured(label="B", settings=settings(), results=results_of(rows_with(*[2] * 12, tokens=8)))
    one = compare_set("a", counted(*[0] * 11), long)
    assert one.lengths == (2.0, 8.0)
    assert [warning[:3] for warning in one.warnings] == ["A: "]
    said = comparison_notes([one])
    assert "a: 1 problems stand in only one of the two and are left out" in said
    assert "a: mean length 2.0 -> 8.0 tokens" in said
    assert not any("not corrected" in note for note in said)
    assert "the p values and intervals of 2 sets are not corrected for there being 2" in comparison_notes([one, one])
    single = compare_set("a", counted(*[0] * 8, k=1), counted(*[1] * 8, k=1, label="B"))
    assert reading(single) == "pass@1 rose; one sample each can't tell sharper from wider"


def test_three_intervals_in_three_columns() -> None:
    """Each under its own head."""
    one = compare_set("a", counted(*[0, 1, 2, 3, 4, 1] * 3), counted(*[1, 3, 2, 4, 3, 0] * 3, label="B"))
    table = comparison_tables("A", "B", [one], 0)[0]
    cells = dict(zip(table.heads, table.rows[0], strict=True))
    p = one.paired
    for head, low, high in (
        ("95%, population", p.low, p.high),
        ("95%, bootstrap", p.bootstrap_low, p.bootstrap_high),
        ("95%, this set alone", p.set_low, p.set_high),
    ):
        assert cells[head] == f"{100 * low:+.1f} to {100 * high:+.1f}"
    assert len(set(cells.values())) == len(cells)
    assert (probability(0.0001), probability(0.00009), probability(math.nan)) == ("0.0001", "<0.0001", "-")


# --- over training ------------------------------------------------------------------------------------------


def evaluated(*sizes: int, maj: bool = True, low: float | None = 0.25) -> dict[str, Any]:
    """The figures of one set at one step, as they stand in eval/step_*.json."""
    at = {str(k): {"value": 0.5, "low": low, "high": None if low is None else 0.75} for k in sizes}
    found = {"pass_at": at, "maj_at": at if maj else {}, "phrases": {}, "parsed_fraction": 1.0}
    return found | {"truncated_fraction": 0.0, "length_mean_tokens": 3.0, "reward_mean": 0.5}


def cells_of(points: dict[int, dict[str, Any]]) -> list[dict[str, str]]:
    """The rows of set a over training."""
    (table,) = progress_tables(curves({step: {"sets": {"a": one}} for step, one in points.items()}))
    return [dict(zip(table.heads, row, strict=True)) for row in table.rows]


def test_curves_are_of_what_every_step_has() -> None:
    """k that all have; maj@k where none is without; a step without right and wrong, or without a bound, has -."""
    first, second = cells_of({0: evaluated(1, 2, 4), 5: evaluated(1, 2)})
    assert list(first) == list(second)
    assert [head for head in first if "@" in head] == ["pass@1 [95%]", "pass@2 [95%]", "maj@2 [95%]"]
    assert "maj@2 [95%]" not in cells_of({0: evaluated(1, 2), 5: evaluated(1, 2, maj=False)})[0]
    assert [row["pass@1 [95%]"] for row in cells_of({0: evaluated(), 5: evaluated(1, 2)})] == [
        "-",
        "50.0% [25.0, 75.0]",
    ]
    assert cells_of({0: evaluated(1, low=None)})[0]["pass@1 [95%]"] == "50.0%"


def test_a_set_that_came_later_has_a_curve_of_its_own_steps() -> None:
    """A resumed run may have another test set."""
    found = curves({0: {"sets": {"a": evaluated(1)}}, 5: {"sets": {"a": evaluated(1), "b": evaluated(1)}}})
    assert {name: list(curve.points) for name, curve in found.items()} == {"a": [0, 5], "b": [5]}


# --- sets and checks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ("x/test.jsonl, y/test.jsonl", ["x-test", "y-test"]),
        ("x/a.parquet,x/b.json,", ["a", "b"]),
        ([{"source": "x/t.jsonl", "name": "t"}, "y/t.jsonl"], ["t", "y-t"]),
        ("a b.jsonl", ["a_b"]),
    ],
)
def test_names_of_sets(data: Any, names: list[str]) -> None:
    """By stems, with the folder where two have one stem; a name that was given stays."""
    found = evaluation_sources(config(eval__data=data))
    assert list(found) == names
    assert all(source.source == source.source.strip() for source in found.values())


def best(**layer: Any) -> Config:
    """keep_best on val."""
    base = {"checkpoint__keep_best": 1, "eval__data": "val.jsonl", "checkpoint__every": 1, "eval__every": 1}
    return config(**base | layer)


def problem_lines(**layer: Any) -> list[str]:
    """What check says of a configuration that is fine but for this."""
    made = best()
    for key, value in layer.items():
        section, name = key.split("__")
        own = getattr(made, section).model_copy(update={name: value})
        made = made.model_copy(update={section: own})
    return list(problems_of(made))


def test_what_keeps_nothing_and_what_can_not_be_picked_by() -> None:
    """A save that meets an evaluation only at the very last step; a majority of graded floats."""
    assert problem_lines() == []
    assert problem_lines(train__num_steps=7, checkpoint__every=7)[0].startswith("checkpoint.keep_best = 1 keeps noth")
    assert problem_lines(train__num_steps=8, checkpoint__every=7) == []
    floats = {"reward__functions": ("a.py:f",), "sampling__filter": "nonzero_std"}
    for metric in ("pass", "maj"):
        (line,) = problem_lines(**floats, checkpoint__best_metric=metric)
        assert line.startswith(f'checkpoint.best_metric = "{metric}" needs rewards that say what is right')
    assert problem_lines(**floats, checkpoint__best_metric="avg") == []


def test_case_and_blanks_make_no_other_problem(tmp_path: Path) -> None:
    """A test problem is no validation problem in capitals either."""
    write_rows(tmp_path / "val.jsonl", rows_of([1]))
    write_rows(tmp_path / "test.jsonl", [{"prompt": "SAY  1 ", "answer": "1"}])
    both = f"{tmp_path}/val.jsonl,{tmp_path}/test.jsonl"
    with pytest.raises(UserError, match=r"is also .*val\.jsonl, row 1"):
        check_evaluation(best(eval__data=both, checkpoint__best_on="val"), None)


def test_figures_that_are_too_high_are_told_of() -> None:
    """The only set picks; a public test set picks; neither without keep_best."""
    said: list[str] = []
    check_validation(best(), {"val": []}, said)
    assert ["picks by val, the only evaluation set" in note for note in said] == [True]
    said.clear()
    check_validation(best(eval__data="amc23,t.jsonl", checkpoint__best_on="amc23"), {"amc23": [], "t": []}, said)
    assert said == ["checkpoint.best_on = amc23: a public test set picks checkpoints; do not report on it"]
    said.clear()
    check_validation(best(checkpoint__keep_best=0), {"val": []}, said)
    check_validation(best(eval__data="v.jsonl,t.jsonl", checkpoint__best_on="v"), {"v": [], "t": []}, said)
    assert said == []


def test_rows_that_were_dropped_are_neither_repeated_nor_missing() -> None:
    """A set's notes count what could not be graded for what it is."""
    made, three = config(), [None] * 3
    counts = Counter(rows=5, bad_answers=2)
    assert set_notes("a", "a.jsonl", counts, three, made) == []  # type: ignore[arg-type]
    assert "a: 3 rows hold 2 distinct" in set_notes("a", "a.jsonl", counts, three[:2], made)[0]  # type: ignore[arg-type]
    whole = Counter(rows=30, bad_answers=1)
    assert set_notes("aime24", "aime24", whole, [None] * 29, made) == []  # type: ignore[list-item]


# --- the best checkpoint ------------------------------------------------------------------------------------


def test_the_only_set_may_be_named_too() -> None:
    """Its metrics stand without its name."""
    named = config().checkpoint.model_copy(update={"best_on": "val"})
    assert score({"eval/accuracy": 0.5, "eval/reward_mean": 0.1}, named) == 0.5


def test_the_best_checkpoint_is_the_highest_sound_one(tmp_path: Path) -> None:
    """Of equals the newest; a damaged one is passed over; without a score there is none."""
    for step, value in ((1, 0.5), (2, 0.9), (3, 0.9), (4, 0.1), (5, None)):
        save(tmp_path / "c", step, 9, score=value)
    assert checkpoint.best(tmp_path / "c").path.name == "step_000003"
    flip_a_byte(tmp_path / "c" / "step_000003" / "optimizer.safetensors")
    assert checkpoint.best(tmp_path / "c").path.name == "step_000002"
    save(tmp_path / "d", 1, 9)
    with pytest.raises(UserError, match="no checkpoint was evaluated"):
        checkpoint.best(tmp_path / "d")


# --- what is typed ------------------------------------------------------------------------------------------


def refused(*words: str | Path) -> str:
    """The line of a command that has to end with 2."""
    code, _, err = helpers.quiet_dapo(*words)
    assert code == 2, err
    return err.strip().splitlines()[-1]


def folder(name: str, *sets: str) -> Path:
    """A finished evaluation of sets of six problems."""
    asked = settings() | {"sets": {one: {"problems": 6, "digest": "d", "asked": "p"} for one in sets}}
    store = EvaluationDirectory(Path(name))
    store.hold()
    store.begin(asked)
    store.finish(run({one: prompts(6) for one in sets}, store=store), "")
    store.release()
    return Path(name)


def test_samples_that_are_missing_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an evaluation's folder as in a run: its figures were made of more."""
    monkeypatch.chdir(tmp_path)
    file = folder("whole", "a") / "samples" / "a.jsonl"
    shutil.copytree("whole", "less")
    (tmp_path / "less" / "samples" / "a.jsonl").write_bytes(b"".join(file.read_bytes().splitlines(True)[:-4]))
    assert "there are samples of 5 problems of a, and figures of 6" in refused("compare", "whole", "less")
    copy = Path(shutil.copytree(helpers.finished_run(), "run"))
    stepped = copy / "eval" / "step_000002.json"
    stepped.write_text(stepped.read_text().replace('"problems": 4', '"problems": 5'))
    assert "there are samples of 4 problems of holdout, and figures of 5" in refused("compare", "run@0", "run")


def test_a_run_without_a_step_is_its_newest_evaluation() -> None:
    """As for dapo eval."""
    whole = helpers.finished_run()
    code, out, err = helpers.quiet_dapo("compare", f"{whole}@0", whole, "--json")
    assert code == 0, err
    assert helpers.strict_json(out)["after"] == f"{whole}@2"


def test_over_seeds_only_the_sets_of_all_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the first and the last."""
    monkeypatch.chdir(tmp_path)
    words = ",".join(str(folder(*one)) for one in (("x", "a", "b"), ("y", "a"), ("z", "a", "b")))
    code, out, err = helpers.quiet_dapo("compare", words, "--json")
    assert code == 0, err
    assert list(helpers.strict_json(out)["sets"]) == ["a"]


def test_progress_reads_from_the_first_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rise is a rise, and the problems newly solved are those of the last step."""
    steps = {"r@0": counted(*[0] * 8), "r@2": counted(*[4] * 8, label="B")}
    monkeypatch.setitem(first_and_last.__globals__, "measured", steps.__getitem__)
    (line,) = first_and_last("r", 0, 2)
    assert line.startswith("a, step 0 to 2, paired: avg +100.0 points")
    assert "8 problems without a right sample in step 0 have one in step 2, 0 the other way round" in line


def test_the_only_set_of_a_run_is_known_to_have_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """RUN@best without checkpoint.best_on; not where another set is evaluated, nor another step."""
    monkeypatch.setattr("dapo.run.directory.RunDirectory.open", lambda name: name)
    monkeypatch.setattr("dapo.build.config_of_run", lambda run: best())
    assert _picked("r@best", best()).startswith("val picked this checkpoint")
    assert _picked("r@best", best(eval__data="t.jsonl")) == ""
    assert _picked("r@3", best()) == ""


def test_stopped_before_the_first_sample_it_can_go_on_too(tmp_path: Path) -> None:
    """The folder stays, and the line says how."""
    store = directory(tmp_path / "e")
    made = evaluator.Evaluator(
        config=config(),
        engine=ScriptedEngine(says),
        grader=graders(config()),
        sets={"a": prompts(3)},
        settings={},
        notes=(),
    )
    with pytest.raises(Interrupted, match="0 of 3 problems are sampled; go on with: dapo eval --resume"):
        _sample(made, store, lambda: True)
    assert (tmp_path / "e" / "settings.json").is_file()
    store.release()


def test_what_a_folder_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its paths are of is said elsewhere alone; a model that was loaded has no server."""
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = dict.fromkeys(("endpoint", "api_key_env", "concurrency"))
    more = {"config": resolve(config()), "model": {"name": "m", "path": "m", "weights": "w"}, "server": None}
    store = EvaluationDirectory(tmp_path / "e")
    store.hold()
    store.begin(settings() | more | {"directory": str(tmp_path)})
    store.release()
    assert _asked(store, given).where == ""
    assert _asked(store, given).about == {"name": "m", "path": "m"}
    monkeypatch.chdir(tmp_path / "e")
    assert f"was started in {tmp_path}," in _asked(store, given).where
    for name, value in (("endpoint", "http://x/v1"), ("api_key_env", "X"), ("concurrency", 2)):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')}: .* evaluates a model that is loaded here"):
            _asked(store, given | {name: value})


def test_a_recipe_that_keeps_the_best_can_grade_another_set(tmp_path: Path) -> None:
    """What concerns training alone is no reason to refuse."""
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'schema = 1\nname = "r"\ndescription = "d"\n[model]\npath = "m"\n[data]\nsource = "d.jsonl"\n'
        '[eval]\ndata = "val.jsonl,t.jsonl"\nevery = 1\n[checkpoint]\nevery = 1\nkeep_best = 1\nbest_on = "val"\n'
    )
    made = config_of_model("x", str(recipe), ("eval.data=t.jsonl",), "dapo")
    assert (made.eval.data, made.checkpoint.keep_best, made.checkpoint.best_on) == ("t.jsonl", 0, None)


def test_no_part_of_a_table_is_wider_than_the_terminal() -> None:
    """The first column stands in each of the parts, and takes room there."""
    parts = [heads for heads, _ in columns_that_fit(["set", *["a" * 10] * 4], [["x"] * 5], 30)]
    assert [len(heads) for heads in parts] == [2, 2, 2, 2]
    assert [len(heads) for heads, _ in columns_that_fit(["set", *["a" * 10] * 4], [], 33)] == [3, 3]


def test_programs_alone_bring_their_judge() -> None:
    """With the wording of the set itself; beside others, or where another template was asked for, nothing changes."""
    alone = evaluator.prepare(config(eval__data="livecodebench", data__template="dapo"))
    assert (alone.reward.functions, alone.data.template) == (("python-tests",), "chat")
    raw = evaluator.prepare(config(eval__data="livecodebench", data__template="raw"))
    assert raw.data.template == "raw"
    mixed = evaluator.prepare(config(eval__data="livecodebench,amc23", data__template="dapo"))
    assert (mixed.reward.functions, mixed.data.template) == ((), "dapo")


def test_an_evaluation_has_one_limit_and_no_penalty() -> None:
    """Rewards of an evaluation are what the functions say."""
    made = evaluator.prepare(config(eval__max_response_tokens=9, sampling__max_response_tokens=30000))
    assert (made.eval.max_response_tokens, made.sampling.max_response_tokens, made.reward.overlong) == (9, 9, "none")


def test_a_server_gets_one_system_turn(tmp_path: Path) -> None:
    """That of the problem, else data.system."""
    turns = [[{"role": "user", "content": "say 7"}], [{"role": "system", "content": "own"}]]
    turns[1] += [{"role": "user", "content": "say 8"}]
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps({"prompt": one, "answer": "7"}) + "\n" for one in turns))
    made = config(eval__data=str(data), data__template="chat", data__system="Be brief.")
    found = evaluator._worded(made, check_evaluation(made, None))["d"]
    said = [[(turn["role"], turn["content"]) for turn in prompt.messages or ()] for prompt in found]
    assert said == [[("system", "Be brief."), ("user", "say 7")], [("system", "own"), ("user", "say 8")]]
    with pytest.raises(UserError, match="has no system turn"):
        evaluator._worded(
            config(eval__data=str(data), data__template="raw", data__system="x"), check_evaluation(made, None)
        )


def test_the_table_that_ends_a_run() -> None:
    """The largest k that both have, each interval beside its name, one row for a problem, and which set picks."""
    made = run({"a": prompts(12)}, config(eval__k=16)).summary()["sets"]["a"]
    made["intervals_95"] |= {
        "population, over problem means": [0.2, 0.8],
        "this set alone, sampling noise": [0.4, 0.6],
    }
    before = made | {"pass_at": {k: made["pass_at"][k] for k in ("2", "4", "8", "16")}}
    table = _figures("t", before, made)
    names, cells = ([str(cell) for cell in table.columns[place].cells] for place in (0, 2))
    assert "pass@16" in names
    assert "maj@16" in names
    shown = dict(zip(names, cells, strict=True))
    assert (shown["95%, other such problems"], shown["95%, these problems"]) == ("20.0% to 80.0%", "40.0% to 60.0%")
    assert _answers(rows_with(1, 2, 3), rows_with(3, 2, 1)).row_count == 3
    two = {"eval__data": "val.jsonl,t.jsonl", "checkpoint__best_on": "val"}
    picks = [_title("val", best()), _title("val", best(**two)), _title("t", best(**two)), _title("val", config())]
    assert ["it picks the best checkpoint" in title for title in picks] == [True, True, False, False]


@pytest.mark.parametrize("words", [("-o", "y"), ("--recipe", "quickstart"), ("--k", "3"), ("--seed", "0")])
def test_going_on_takes_no_other_words(words: tuple[str, str]) -> None:
    """They would be ignored."""
    assert "--resume takes everything from the folder" in refused("eval", "--resume", "x", *words)


def test_a_comma_or_an_at_in_a_folder_that_is_there_is_part_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a group over seeds nor a step."""
    monkeypatch.chdir(tmp_path)
    code, out, err = helpers.quiet_dapo("compare", folder("x,y", "a"), folder("z", "a"), "--json")
    assert code == 0, err
    assert helpers.strict_json(out)["before"] == "x,y"
    (tmp_path / "m@3").mkdir()
    assert [split_step(word) for word in ("m@3", "r@3", "r@best", "r")] == [
        ("m@3", None),
        ("r", 3),
        ("r", "best"),
        ("r", None),
    ]
    assert is_run("latest")
    assert not is_run("m@3")


def test_greedy_samples_are_told_of_where_there_are_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--k 1 is what the note asks for."""
    monkeypatch.chdir(tmp_path)
    for k, told in (("1", False), ("2", True)):
        code, _, err = helpers.quiet_dapo("eval", helpers.finished_run(), "--temperature", "0", "--k", k, "-o", f"k{k}")
        assert code == 0, err
        assert ("temperature 0 is greedy" in err) is told


@pytest.mark.parametrize(("asked", "used"), [(3, 3), (None, 16)])
def test_so_many_requests_at_a_time(asked: int | None, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were asked for."""
    seen: list[Any] = []
    monkeypatch.setattr("dapo.evaluator.for_endpoint", lambda config, about, endpoint: seen.append(endpoint))
    _evaluator(Asked(config=config(), about={"name": "m"}, endpoint="http://x/v1", concurrency=asked))
    assert [endpoint.concurrency for endpoint in seen] == [used]
