"""Evaluations of several sets: on disk, interrupted, repeated rows, votes, and what a comparison refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from dapo.config import Config, load_config
from dapo.data import check_evaluation, tokenise_evaluation
from dapo.errors import DataError, Interrupted, UserError
from dapo.evals.compare_tables import comparison_notes, reading
from dapo.evals.comparison import Measured, check_comparable, compare_seeds, compare_set, over_seeds, pair_up
from dapo.evals.evaluation import Evaluation, figures_of_rows
from dapo.evals.phrases import phrase_kinds, phrase_shares
from dapo.evals.results import results_of, vote_classes
from dapo.evals.run import evaluate
from dapo.evals.settings import changed_names, differences
from dapo.evals.store import EvaluationDirectory
from dapo.grading import GroupGrader
from dapo.metrics import score
from dapo.reward import Scorer
from dapo.rollout.scripted import ScriptedEngine
from dapo.types import Prompt, Score, Verdict
from helpers_run import write_rows

EOS = 9


def config(**layer: Any) -> Config:
    """k = 4, answers by last number."""
    base = {"model.path": "m", "data.source": "d.jsonl", "eval.k": 4, "reward.extract": ["last_number"]}
    return load_config(base, {key.replace("__", "."): value for key, value in layer.items()})


def prompts(count: int, first: int = 0) -> list[Prompt]:
    """Problems p0, p1, ... whose answer is 7."""
    ids = np.zeros(1, np.int32)
    return [
        Prompt(id=f"p{i}", messages=None, text=f"q{i}", answer="7", source="s", token_ids=ids, problem=f"q{i}")
        for i in range(first, first + count)
    ]


def says(draw: int, prompt: Prompt, g: int) -> list[int]:
    """Deterministic answers 1 to 8, as tokens; 7 is right."""
    return [1 + (3 * int(prompt.id[1:]) + 5 * g) % 8, EOS]


def graders(made: Config) -> GroupGrader:
    """Token t is the text t; 8 says nothing."""
    scorer = Scorer(made.reward)
    return GroupGrader(
        made,
        scorer.score,
        lambda ids: "".join("" if i == 8 else str(i) for i in ids),
        [EOS],
        equal=lambda prompt: scorer.equal,
    )


def run(sets: dict[str, Sequence[Prompt]], made: Config | None = None, **more: Any) -> Evaluation:
    """One evaluation by the scripted engine."""
    made = made or config()
    return evaluate(more.pop("engine", None) or ScriptedEngine(says), graders(made), sets, made, **more)


def same(evaluation: Evaluation) -> dict[str, Any]:
    """Its figures without the seconds."""
    found = evaluation.summary()["sets"]
    for figures in found.values():
        figures["spent"].pop("seconds")
    return found  # type: ignore[no-any-return]


def settings(**layer: Any) -> dict[str, Any]:
    """Settings of an evaluation, fields to change by section__name."""
    found: dict[str, Any] = {
        "model": {"name": "m"},
        "sampling": {"k": 4, "temperature": 1.0, "seed": 0},
        "prompt": {"template": "chat"},
        "grader": {"extract": ["boxed"], "code": "1"},
        "sets": {"a": {"problems": 6, "digest": "d", "asked": "p"}, "b": {"problems": 5, "digest": "e", "asked": "q"}},
    }
    for key, value in layer.items():
        section, name = key.split("__")
        found[section][name] = value
    return found


# --- the same figure -----------------------------------------------------------------------------------


def rows_of(numbers: Sequence[int], times: int = 1) -> list[dict[str, str]]:
    return [{"prompt": f"say {n}", "answer": str(n)} for _ in range(times) for n in numbers]


@pytest.mark.parametrize("layout", ["blocks", "rounds"])
def test_a_file_of_each_problem_32_times_gives_the_figure_of_the_file_of_each_once(layout: str, tmp_path: Path) -> None:
    """To the digit: k samples of each problem, however often it stands in the file; and it is told."""
    once = rows_of(range(1, 9))
    many = once * 32 if layout == "rounds" else [row for row in once for _ in range(32)]
    for index, row in enumerate(many):
        many[index] = row | {"extra_info": {"index": index}}
    found = {}
    for name, rows in (("once", once), ("many", many)):
        path = write_rows(tmp_path / f"{name}.jsonl", rows)
        made = config(eval__k=32, eval__data=str(path), model__path="m", data__template="raw")
        checked = check_evaluation(made, None)
        sets = {"set": next(iter(tokenise_evaluation(made, checked, tiny.tokenizer()).values()))}

        def by_text(draw: int, prompt: Prompt, g: int) -> list[int]:
            return [1 + (3 * int(prompt.answer or 0) + 5 * g + g // 3) % 8, EOS]

        found[name] = same(run(sets, made, engine=ScriptedEngine(by_text)))["set"]
        for problem in found[name]["per_problem"]:
            problem.pop("source")
        found[name].pop("by_source")
        assert any("256 rows hold 8 distinct problems" in note for note in checked.notes) is (name == "many")
    assert found["once"] == found["many"]
    assert found["once"]["problems"] == 8
    assert 0 < found["once"]["accuracy"] < 1


def test_a_set_has_the_same_figures_whatever_stands_beside_it() -> None:
    """Draws are counted within a set; metrics carry its name where there are several."""
    alone, both = run({"b": prompts(5, 3)}), run({"a": prompts(6), "b": prompts(5, 3)})
    assert same(alone)["b"] == same(both)["b"]
    assert both.named("b").accuracy == alone.named("b").accuracy
    assert {"eval/a/accuracy", "eval/b/accuracy", "eval/b/pass_at_k"} <= set(both.metrics())
    assert "eval/accuracy" in alone.metrics()
    assert "eval/accuracy" not in both.metrics()


# --- on disk --------------------------------------------------------------------------------------------


def directory(path: Path, **layer: Any) -> EvaluationDirectory:
    """A folder held and begun."""
    made = EvaluationDirectory(path)
    made.hold()
    made.begin(settings(**layer))
    return made


@pytest.mark.parametrize("polls", [0, 1, 4, 6, 7, 10])
def test_an_interrupted_evaluation_goes_on_to_the_same_figures(polls: int, tmp_path: Path) -> None:
    """Stopped between any two polls: nothing is sampled twice, and the end is that of never having stopped."""
    sets: dict[str, Sequence[Prompt]] = {"a": prompts(6), "b": prompts(5, 3)}
    whole = same(run(sets))
    store, asked = directory(tmp_path / "e"), iter(range(100))
    with pytest.raises(Interrupted):
        run(sets, store=store, stopped=lambda: next(asked) >= polls)
    store.release()
    again = EvaluationDirectory(tmp_path / "e")
    again.hold()
    assert again.begin(settings()) == polls
    engine = ScriptedEngine(says)
    result = run(sets, store=again, engine=engine)
    assert same(result) == whole
    assert len(engine.submitted) == 11 - polls
    assert same(figures_of_rows(again.all_rows())) == whole
    again.release()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_end_is_sampled_again(cut: int, tmp_path: Path) -> None:
    """A kill within a write leaves half a line or half a problem: cut off, and the rest stands."""
    sets: dict[str, Sequence[Prompt]] = {"a": prompts(6), "b": prompts(5)}
    store = directory(tmp_path / "e")
    whole = same(run(sets, store=store))
    store.release()
    file = tmp_path / "e" / "samples" / "a.jsonl"
    data = file.read_bytes()
    file.write_bytes(data[: -cut * 40])
    again = EvaluationDirectory(tmp_path / "e")
    again.hold()
    there = again.begin(settings())
    assert 5 <= there < 11
    assert file.read_bytes() == data[: len(file.read_bytes())]
    assert file.read_bytes().count(b"\n") % 4 == 0
    assert same(run(sets, store=again)) == whole
    again.release()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    """In the middle of a file it is no torn end."""
    store = directory(tmp_path / "e")
    run({"a": prompts(6), "b": prompts(5)}, store=store)
    file = tmp_path / "e" / "samples" / "a.jsonl"
    lines = file.read_text().split("\n")
    row = json.loads(lines[5])
    damages: list[dict[str, Any]] = [
        row | change
        for change in ({"tokens": "9"}, {"draw": 99}, {"draw": [1]}, {"set": "b"}, {"g": 2}, {"correct": 3})
    ]
    damages += [{key: value for key, value in row.items() if key != gone} for gone in ("correct", "set", "prompt_id")]
    for damage in ("{", "[]", "7", *map(json.dumps, damages)):
        file.write_text("\n".join([*lines[:5], damage, *lines[6:]]))
        with pytest.raises(UserError, match=r"a\.jsonl, line 6: damaged"):
            store.rows("a")
    store.release()


def test_samples_of_another_problem_are_not_taken_for_this_one(tmp_path: Path) -> None:
    """Whatever the settings say."""
    store = directory(tmp_path / "e")
    run({"a": prompts(6), "b": prompts(5)}, store=store)
    with pytest.raises(UserError, match="the samples of problem 1 are another problem's"):
        run({"a": prompts(6, 1), "b": prompts(5)}, store=store)
    store.release()


@pytest.mark.parametrize("damage", ["sets", "sampling", "prompt", "grader"])
@pytest.mark.parametrize("value", [None, "x", [], {"d": "x"}])
def test_damaged_settings_are_one_line(damage: str, value: Any, tmp_path: Path) -> None:
    """Valid JSON of the wrong shape."""
    store = directory(tmp_path / "e")
    store.release()
    file = tmp_path / "e" / "settings.json"
    changed = json.loads(file.read_text()) | {damage: value}
    file.write_text(json.dumps(changed))
    if damage in ("prompt", "grader") and isinstance(value, dict):
        EvaluationDirectory(tmp_path / "e").settings()
        return
    with pytest.raises(UserError, match="damaged"):
        EvaluationDirectory(tmp_path / "e").settings()


def test_a_folder_takes_one_evaluation(tmp_path: Path) -> None:
    """Other settings, another process, something else there: one line each; a new seed is another evaluation."""
    store = directory(tmp_path / "e")
    other = EvaluationDirectory(tmp_path / "e")
    with pytest.raises(UserError, match="another process is evaluating into it"):
        other.hold()
    for layer in ({"sampling__temperature": 0.5}, {"sampling__seed": 1}, {"sets__a": None}, {"model__name": "n"}):
        with pytest.raises(UserError, match="holds an evaluation with other settings"):
            store.begin(settings(**layer))
    store.begin(settings())
    store.release()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(UserError, match="holds something else"):
        EvaluationDirectory.place("m", str(tmp_path / "full"))
    with pytest.raises(UserError, match="not finished yet"):
        store.figures()


def test_default_folders_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two evaluations of one model within a second."""
    monkeypatch.chdir(tmp_path)
    places = [EvaluationDirectory.place("org/model", None) for _ in range(3)]
    for place in places:
        place.hold()
    assert len({place.path for place in places}) == 3
    assert all(place.path.name.startswith("model-") for place in places)
    for place in places:
        place.release()


# --- votes ----------------------------------------------------------------------------------------------


def a_score(answer: str | None, right: bool, verdict: Verdict | None = None) -> Score:
    verdict = verdict or (Verdict.CORRECT if right else Verdict.UNPARSED if answer is None else Verdict.WRONG)
    return Score(verdict=verdict, correct=right, reward=0.0, extracted=answer)


def test_votes_go_by_what_the_grader_takes_for_equal() -> None:
    """1/2, 0.5 and \\frac12 are one vote; all right answers are one; silence is none; timeouts stand alone."""
    equal = Scorer(config().reward).equal
    assert equal is not None
    wrong = [r"\frac{1}{2}", "0.5", "1/2", "3", "3.0", "x"]
    votes = vote_classes([a_score(answer, False) for answer in wrong], equal)
    assert votes == [1, 1, 1, 2, 2, 3]
    mixed = [a_score("50%", True), a_score(None, False), a_score("0.5", True), a_score("4", False)]
    assert vote_classes(mixed, equal) == [0, None, 0, 1]
    slow = [a_score("1/2", False, Verdict.TIMEOUT), a_score("0.5", False), a_score("1/2", False)]
    assert vote_classes(slow, equal) == [1, 2, 1]


def test_no_wrong_answer_joins_the_right_ones() -> None:
    """Even where a comparison among answers says that it is equal to one of them."""

    def everything(pairs: Sequence[tuple[str, str]]) -> list[bool]:
        return [True for _ in pairs]

    votes = vote_classes([a_score("1", True), a_score("2", False), a_score("3", False)], everything)
    assert votes == [0, 1, 1]


def test_maj_of_an_evaluation_by_hand() -> None:
    """Four samples 7 7 3 silent: with k = 4 it is right; 7 3 3 silent is wrong; 7 3 is a tie, half."""
    answers = {"p0": [7, 7, 3, 8], "p1": [7, 3, 3, 8], "p2": [7, 3, 8, 8], "p3": [8, 8, 8, 8]}
    got = run({"a": prompts(4)}, engine=ScriptedEngine(lambda d, p, g: [answers[p.id][g], EOS])).named("a")
    assert got.maj_at[-1].value == (1 + 0 + 0.5 + 0) / 4
    assert got.maj_at[-1].tied == 0.25
    assert got.maj_at[0].value == pytest.approx(got.accuracy) == (2 + 1 + 1 + 0) / 16
    assert [result.majority() for result in got.results] == ["7", "3", None, None]
    assert got.pass_at[-1].value == 0.75


# --- phrases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Wait, that gives 3.", {"reflection"}),
        ("waiting at the await station", set()),
        ("Let me double-check this.", {"reflection"}),
        ("ALTERNATIVELY, we may", {"backtracking"}),
        ("That's wrong. Let's try again.", {"backtracking"}),
        ("The awaited weight", set()),
        ("等等,再检查一遍", {"reflection"}),
        ("不对,换个思路", {"backtracking"}),
        ("12", set()),
        ("", set()),
    ],
)
def test_phrases(text: str, kinds: set[str]) -> None:
    """Whole words, any case, two languages."""
    assert set(phrase_kinds(text)) == kinds


def test_phrase_shares_are_by_correctness() -> None:
    """Of the right and of the wrong responses apart; NaN of none."""
    got = phrase_shares([(["reflection"], True), ([], True), (["reflection"], False)])
    assert (got["reflection"].right, got["reflection"].wrong) == (0.5, 1.0)
    assert math.isnan(phrase_shares([(["reflection"], True)])["reflection"].wrong)


# --- comparisons ------------------------------------------------------------------------------------------


def measured(script: Callable[..., list[int]] = says, label: str = "A", count: int = 6, **layer: Any) -> Measured:
    """An evaluation of set a."""
    made = run({"a": prompts(count)}, engine=ScriptedEngine(script))
    return Measured(label=label, settings=settings(**layer), results=results_of(made.rows))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ({"sampling__temperature": 0.6}, "temperature"),
        ({"sampling__k": 8}, "k"),
        ({"prompt__template": "dapo"}, "template"),
        ({"grader__code": "2"}, "code"),
        ({"grader__extract": ["last_number"]}, "extract"),
        ({"sets__a": {"problems": 6, "digest": "x"}}, "data"),
    ],
)
def test_what_differs_is_refused_unless_allowed_by_name(layer: dict[str, Any], name: str) -> None:
    """The message says what, and the word that allows it; nothing else does."""
    pair = [measured(), measured(label="B", **layer)]
    with pytest.raises(UserError, match=rf"--allow {name}$"):
        check_comparable(pair, [])
    with pytest.raises(UserError):
        check_comparable(pair, ["seed", "stop"])
    assert check_comparable(pair, [name])[0].startswith("allowed: ")


def test_the_seed_and_the_model_may_differ() -> None:
    """They are no settings of what is measured."""
    assert check_comparable([measured(), measured(sampling__seed=5, model__name="other")], []) == []
    assert not changed_names(settings(), settings(sampling__seed=5))
    assert differences(settings(), settings(sampling__seed=5)) == ["sampling.seed: 0 against 5"]


def test_a_comparison_by_hand() -> None:
    """A: 1 of 4 right everywhere. B: all right on the first two problems, none on the third, else as A."""

    def a(draw: int, prompt: Prompt, g: int) -> list[int]:
        return [7 if g == 0 else 1, EOS]

    def b(draw: int, prompt: Prompt, g: int) -> list[int]:
        return {"p0": [7, EOS], "p1": [7, EOS], "p2": [1, EOS]}.get(prompt.id) or a(draw, prompt, g)

    got = compare_set("a", measured(a), measured(b, "B"))
    assert (got.before, got.after) == (0.25, (1 + 1 + 0 + 3 * 0.25) / 6)
    assert got.paired.difference == pytest.approx(got.after - got.before)
    assert (got.paired.up, got.paired.down, got.paired.same) == (2, 1, 3)
    assert [mover.id for mover in got.movers] == ["p0", "p1", "p2"]
    assert [mover.change for mover in got.movers] == [0.75, 0.75, -0.25]
    assert [f.k for f in got.pass_at] == [1, 2, 4]
    assert got.pass_at[-1].difference == pytest.approx(-1 / 6)
    assert got.pass_at[0].difference == pytest.approx(got.paired.difference)
    assert got.beyond_chance == (0, 0)
    json.dumps(got.summary(), allow_nan=False)


def test_problems_are_paired_by_place_or_by_what_was_asked() -> None:
    """The same data under another wording pairs by place; other data by what the model was asked."""
    one, other = measured(), measured(count=4, label="B", sets__a={"problems": 4, "digest": "x"})
    pairs, left_out = pair_up("a", one, other)
    assert [(x.id, y.id) for x, y in pairs] == [(f"p{i}", f"p{i}") for i in range(4)]
    assert left_out == 2
    renamed = run({"a": prompts(6, 10)}, engine=ScriptedEngine(lambda d, p, g: says(d, prompts(6)[d], g)))
    worded = Measured(label="C", settings=settings(prompt__template="dapo"), results=results_of(renamed.rows))
    pairs, left_out = pair_up("a", one, worded)
    assert (len(pairs), left_out) == (6, 0)
    assert compare_set("a", one, worded).paired.same == 6
    elsewhere = Measured(
        label="D", settings=settings(sets__a={"problems": 6, "digest": "y"}), results=results_of(renamed.rows)
    )
    with pytest.raises(UserError, match="no problem in common"):
        pair_up("a", one, elsewhere)


def test_over_seeds_the_seed_is_the_unit() -> None:
    """The mean of the evaluations' figures; its interval knows nothing of how many problems there were."""
    groups = [[measured(lambda d, p, g, n=n: [7 if g < n else 1, EOS]) for n in counts] for counts in ((1, 2), (3, 4))]
    first = over_seeds("a", groups[0])
    assert first.values == (0.25, 0.5)
    assert first.mean == 0.375
    half = 12.706204736 * 0.25 / 2  # t(0.975, 1) * s / sqrt(2), s = 0.25 / sqrt(2)
    assert (first.low, first.high) == (0.0, 1.0)
    assert first.mean + half > 1
    both = compare_seeds("a", groups[0], groups[1])
    assert both.difference == 0.5


# --- the best checkpoint ------------------------------------------------------------------------------------


def test_the_best_is_picked_by_the_stated_metric_on_the_stated_set() -> None:
    """best_on and best_metric; the only set without a name; None where it was not evaluated."""
    metrics = {
        f"eval/{name}/{figure}": value
        for name, values in (("val", (0.2, 0.6, 0.3, -0.6)), ("test", (0.9, 0.9, 0.9, 0.9)))
        for figure, value in zip(("accuracy", "pass_at_k", "maj_at_k", "reward_mean"), values, strict=True)
    }
    for metric, value in (("avg", 0.2), ("pass", 0.6), ("maj", 0.3), ("reward", -0.6)):
        settings = config().checkpoint.model_copy(update={"best_on": "val", "best_metric": metric})
        assert score(metrics, settings) == value
    assert score({}, settings) is None
    alone = config().checkpoint
    assert score({"eval/accuracy": 0.5, "eval/reward_mean": 0.1}, alone) == 0.5
    assert score({"eval/accuracy": math.nan, "eval/reward_mean": 0.1}, alone) == 0.1


def test_a_validation_set_holds_no_test_problem(tmp_path: Path) -> None:
    """Checkpoints are not picked on what they are tested on."""
    write_rows(tmp_path / "val.jsonl", rows_of([1, 2, 3]))
    write_rows(tmp_path / "test.jsonl", rows_of([3, 4]))
    layer = {
        "eval__data": f"{tmp_path}/val.jsonl,{tmp_path}/test.jsonl",
        "eval__every": 1,
        "checkpoint__every": 1,
        "checkpoint__keep_best": 1,
    }
    with pytest.raises(DataError, match=r"test\.jsonl, row 1 is also .*val\.jsonl, row 3 \(1 such problems\)"):
        check_evaluation(config(**layer, checkpoint__best_on="val"), None)
    check_evaluation(config(**layer | {"checkpoint__keep_best": 0}), None)


# --- what a comparison may say ------------------------------------------------------------------------------


def counted(*right: int, k: int = 4, label: str = "A", **layer: Any) -> Measured:
    """An evaluation of set a whose problem i has right[i] of k samples right."""
    made = run(
        {"a": prompts(len(right))},
        config(eval__k=k),
        engine=ScriptedEngine(lambda d, p, g: [7 if g < right[d] else 1, EOS]),
    )
    return Measured(label=label, settings=settings(**layer), results=results_of(made.rows))


@pytest.mark.parametrize(("before", "after"), [(0, 4), (1, 2), (0, 1), (3, 4)])
def test_the_same_gain_everywhere_is_no_standstill(before: int, after: int) -> None:
    """Differences without spread: the interval is that of the samples, and the reading says that it rose."""
    one = compare_set("a", counted(*[before] * 30), counted(*[after] * 30, label="B"))
    assert 0 < one.paired.low < one.paired.high or one.paired.low < one.paired.difference == 1
    assert one.paired.low > 0
    assert one.paired.p_value == pytest.approx(1e-4)
    assert reading(one).startswith("pass@1 rose")
    back = compare_set("a", counted(*[after] * 30), counted(*[before] * 30, label="B"))
    assert reading(back).startswith("pass@1 fell")
    same = compare_set("a", counted(*[after] * 30), counted(*[after] * 30, label="B"))
    assert "may not have changed" in reading(same)
    assert same.paired.low <= 0 <= same.paired.high


def test_which_problems_are_newly_solved_is_counted() -> None:
    """A rise of pass@k alone proves no new problem: every one of these was solvable before."""
    one = compare_set("a", counted(1, 1, 1, 0, 2, 4), counted(3, 3, 3, 0, 3, 0, label="B"))
    assert (one.gained, one.lost) == (0, 1)
    assert "0 problems without a right sample in A have one in B, 1 the other way round" in reading(one)


def test_few_samples_can_move_no_problem_beyond_chance() -> None:
    """0 of 4 against 4 of 4 has p = 0.029: after Holm over two problems nothing is left, and it is said."""
    few = compare_set("a", counted(*[0] * 10), counted(*[4] * 10, label="B"))
    assert few.beyond_chance == (0, 0)
    assert any("4 samples are too few for any to be" in note for note in comparison_notes([few]))
    many = compare_set("a", counted(*[0] * 10, k=16), counted(*[16] * 10, k=16, label="B"))
    assert many.beyond_chance == (10, 0)
    assert not any("too few" in note for note in comparison_notes([many]))


def test_other_numbers_of_samples_have_no_permutation_test() -> None:
    """Its signs can't be flipped: with 1 against 64 samples of rare successes it would nearly always say "rose"."""
    pair = counted(*[1] * 6), counted(*[2] * 6, k=8, label="B", sampling__k=8)
    with pytest.raises(UserError, match=r"--allow k$"):
        check_comparable(pair, [])
    assert math.isnan(compare_set("a", *pair).paired.p_value)


def test_columns_that_functions_read_make_other_problems() -> None:
    """Asked otherwise under the same wording, or with another digest of the rows: refused as data."""
    other = {"problems": 6, "digest": "d", "asked": "other"}
    with pytest.raises(UserError, match=r"--allow data$"):
        check_comparable([counted(1), counted(1, label="B", sets__a=other)], [])
    worded = counted(1, label="B", sets__a=other, prompt__template="dapo")
    check_comparable([counted(1), worded], ["template"])
    with pytest.raises(UserError, match=r"--allow data$"):
        check_comparable([counted(1, sets__a={"problems": 6}), counted(1, label="B", sets__a={"problems": 6})], [])


def test_over_seeds_the_problems_have_to_be_the_same() -> None:
    """Even when other data are allowed by name; and no evaluation counts twice."""
    other = counted(1, label="B", sets__a={"problems": 6, "digest": "x", "asked": "p"})
    with pytest.raises(UserError, match="the problems have to be the same"):
        check_comparable([counted(1), other], ["data"], seeds=True)
    with pytest.raises(UserError, match="is named twice"):
        check_comparable([counted(1), counted(1)], [], seeds=True)


def test_problems_that_are_missing_on_one_side_are_paired_by_place() -> None:
    """Never by their rank in the list."""
    one, other = counted(0, 1, 2, 3), counted(0, 1, 2, 3, label="B")
    first = Measured(label="A", settings=one.settings, results={"a": one.results["a"][1:]})
    second = Measured(label="B", settings=other.settings, results={"a": other.results["a"][:3]})
    pairs, left_out = pair_up("a", first, second)
    assert [(x.id, y.id) for x, y in pairs] == [("p1", "p1"), ("p2", "p2")]
    assert left_out == 2


def test_warnings_go_with_the_figures_they_are_about() -> None:
    """Few problems; few right; and pass@k that nearly every problem reaches though avg@k is fine."""
    few = run({"a": prompts(3)}).named("a")
    assert "only 3 problems" in few.warnings[0]

    def answers(right: int) -> ScriptedEngine:
        return ScriptedEngine(lambda d, p, g: [7 if g < right else 1, EOS])

    assert (
        "problems' worth of samples are right"
        in run({"a": prompts(12)}, engine=ScriptedEngine(lambda d, p, g: [7 if d == g == 0 else 1, EOS]))
        .named("a")
        .warnings[0]
    )
    (warning,) = run({"a": prompts(12)}, engine=answers(2)).named("a").warnings
    assert warning.startswith("pass@2, pass@4: ")
    assert run({"a": prompts(40)}, engine=ScriptedEngine(says)).named("a").warnings == ()
