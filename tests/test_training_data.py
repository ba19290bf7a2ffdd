"""What training does with its data: ratings cut and foretell it, sources judge their own answers, epochs count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers_run as helpers
import tiny
from dapo import build
from dapo.config import Config, from_tree, load_config, resolve
from dapo.data import CheckedData, tokenise_data
from dapo.errors import ConfigError, DataError
from dapo.grading import GroupGrader
from dapo.provenance import evaluation_settings
from dapo.reward import Scorers
from dapo.run.directory import RunDirectory
from dapo.types import Finish, FinishedDraw, Prompt, Response, Verdict

TEXT = "\\boxed{7} and then\nAnswer: 5"


def rated(path: Path, *rates: float | None, **columns: Any) -> str:
    """A file of distinct problems with these pass rates."""
    rows = [{"prompt": f"{path.stem} {i}", "answer": "7", "pass_rate": rate, **columns} for i, rate in enumerate(rates)]
    return str(helpers.write_rows(path, rows))


def config(source: Any, **settings: Any) -> Config:
    """A small config over a source; a__b stands for a.b."""
    base = {"model.path": "m", "data.source": source, "sampling.prompts_per_step": 2, "train.updates_per_step": 1}
    return load_config(base | {key.replace("__", "."): value for key, value in settings.items()})


def checked(made: Config) -> CheckedData:
    """Its data, as a run reads them."""
    return build.check_inputs(made)[1]


def rates_left(data: CheckedData) -> list[float | None]:
    """The pass rates of the training problems."""
    return [p.row.columns["pass_rate"] for source in data.training for p in source]


# --- ratings that cut -------------------------------------------------------------------------------

RATED = {"data__rating_column": "pass_rate"}


def test_both_bounds_are_kept_and_drops_are_counted(tmp_path: Path) -> None:
    """From min to max, both included; the unrated stay; three counts and one line."""
    source = rated(tmp_path / "d.jsonl", 0.0, 0.25, None, 0.5, 0.75, 1.0, 1.0)
    data = checked(config(source, **RATED, data__min_pass_rate=0.25, data__max_pass_rate=0.75))
    assert rates_left(data) == [0.25, None, 0.5, 0.75]
    assert {key: data.counts[key] for key in ("rated_too_hard", "rated_too_easy", "unrated")} == {
        "rated_too_hard": 1,
        "rated_too_easy": 2,
        "unrated": 1,
    }
    (note,) = (note for note in data.notes if "min_pass_rate" in note)
    assert "1 problems below and 2 above it are left out; 1 unrated ones stay" in note
    line = build.data_line(tokenise_data(config(source), data, tiny.tokenizer()))
    assert "left out: 2 rated too easy, 1 rated too hard" in line
    assert "unrated" not in line


def test_one_bound_alone(tmp_path: Path) -> None:
    """The other side is open; without any, nothing is cut or counted."""
    source = rated(tmp_path / "d.jsonl", 0.0, 0.5, 1.0)
    assert rates_left(checked(config(source, **RATED, data__min_pass_rate=0.5))) == [0.5, 1.0]
    assert rates_left(checked(config(source, **RATED, data__max_pass_rate=0.5))) == [0.0, 0.5]
    assert rates_left(checked(config(source, **RATED, data__min_pass_rate=0, data__max_pass_rate=1))) == [0, 0.5, 1]
    whole = checked(config(source, **RATED))
    assert rates_left(whole) == [0.0, 0.5, 1.0]
    assert not {"rated_too_hard", "rated_too_easy", "unrated"} & whole.counts.keys()


def test_the_holdout_looks_like_training_and_other_sets_stay_whole(tmp_path: Path) -> None:
    """Held-out problems come from what the bounds leave; a file of eval.data is never cut, or looked at for ratings."""
    source = rated(tmp_path / "d.jsonl", *([0.0] * 10), *([0.5] * 6))
    test = rated(tmp_path / "e.jsonl", 0.0, 1.0, 7.0)
    settings = {**RATED, "data__min_pass_rate": 0.1, "data__holdout": 4, "eval__data": f"holdout,{test}"}
    data = checked(config(source, **settings))
    assert rates_left(data) == [0.5] * 2
    assert [p.row.columns["pass_rate"] for p in data.evaluation["holdout"]] == [0.5] * 4
    assert len(data.evaluation["e"]) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data__min_pass_rate": 0.9}, "data.source[1] (e): none of its 2 problems has a pass_rate from 0.9 to 1"),
        ({"data__max_pass_rate": 0.1}, "(0 below, 2 above); lower data.min_pass_rate or raise data.max_pass_rate"),
    ],
)
def test_a_source_of_which_nothing_is_left(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    """Named, with the bounds, the counts and the mend: a weight can't be met by no problems."""
    sources = [
        {"source": rated(tmp_path / "d.jsonl", 0.0, 1.0), "weight": 1},
        {"source": rated(tmp_path / "e.jsonl", 0.5, 0.6), "weight": 1},
    ]
    with pytest.raises(DataError) as caught:
        checked(config(sources, **RATED, **settings))
    assert said in caught.value.message


# --- ratings that foretell --------------------------------------------------------------------------


def told(data: CheckedData) -> str:
    """The lines about ratings."""
    return "\n".join(note for note in data.notes if note.startswith(("ratings", "forecast")))


def test_the_start_says_what_ratings_foretell(tmp_path: Path) -> None:
    """Rated problems, bands, acceptance, draws: here f(1/2) = 1/2 at G = 2, on three of the four rated ones."""
    source = rated(tmp_path / "d.jsonl", 0.5, 0.5, 0.5, 1.0, None)
    lines = told(checked(config(source, **RATED, sampling__responses_per_prompt=2, sampling__prompts_per_step=3)))
    assert lines.splitlines() == [
        "ratings: 4 of 5 problems have a pass_rate; of the draws: unrated 20.0%, medium 60.0%, all_right 20.0%",
        "forecast by these ratings: 37.5% of draws are informative at 2 responses, so 3 of them take about 8 "
        "(at most 30 a step)",
    ]


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_a_forecast_over_the_limit_is_warned_of(tmp_path: Path, schedule: str) -> None:
    """8 draws are expected: a limit of 8 is enough, one of 7 is not."""
    source = rated(tmp_path / "d.jsonl", 0.5, 0.5, 0.5, 1.0)
    settings = {"sampling__responses_per_prompt": 2, "sampling__prompts_per_step": 3, "sampling__schedule": schedule}
    enough = config(source, **RATED, **settings, sampling__gen_prompts=4, sampling__max_rounds=2)
    assert "at most 8 a step" in told(checked(enough))
    short = config(source, **RATED, **settings, sampling__gen_prompts=7, sampling__max_rounds=1)
    assert "a step draws 7 at most (sampling.max_rounds * gen_prompts): raise it" in told(checked(short))
    hopeless = config(rated(tmp_path / "d.jsonl", 0.0, 1.0), **RATED, **settings)
    assert "so no step will fill, but a step draws 30 at most" in told(checked(hopeless))


def test_no_forecast_where_there_is_none(tmp_path: Path) -> None:
    """Without ratings nothing is said; where nothing is filtered on correctness, or rated, only the counts."""
    source = rated(tmp_path / "d.jsonl", 0.5, 0.5)
    assert told(checked(config(source))) == ""
    assert told(checked(config(source, **RATED, sampling__filter="off"))).count("\n") == 0
    unrated = rated(tmp_path / "d.jsonl", None, None)
    assert told(checked(config(unrated, **RATED))) == (
        "ratings: 0 of 2 problems have a pass_rate; of the draws: unrated 100.0%"
    )


def test_counts_beside_a_rating_are_used(tmp_path: Path) -> None:
    """2 right of 4: every 3 of them hold both, where f(1/2) is 3/4. Only beside the column pass_rate."""
    source = rated(tmp_path / "d.jsonl", 0.5, 0.5, pass_right=2, pass_responses=4, mine=0.5)
    sizes = {"sampling__responses_per_prompt": 3}
    data = checked(config(source, **RATED, **sizes))
    assert "100.0% of draws are informative" in told(data)
    assert "75.0% of draws are informative" in told(checked(config(source, data__rating_column="mine", **sizes)))
    # What training sees of it is the rating alone: another policy's counts are no history of this run.
    prompt = tokenise_data(config(source, **RATED), data, tiny.tokenizer()).by_source[0][0]
    assert prompt.rating == 0.5


def test_all_right_is_a_count(tmp_path: Path) -> None:
    """The last count that can be, and the first."""
    for rate, right in ((1.0, 4), (0.0, 0)):
        source = rated(tmp_path / "d.jsonl", rate, rate, pass_right=right, pass_responses=4)
        assert "0.0% of draws are informative" in told(checked(config(source, **RATED)))


@pytest.mark.parametrize(("right", "responses"), [(5, 4), (-1, 4), (1.0, 4), (True, 4), ("1", 4), (0, 4.5), (1, False)])
def test_counts_that_are_none(tmp_path: Path, right: Any, responses: Any) -> None:
    """Named by row."""
    source = rated(tmp_path / "d.jsonl", 0.5, 0.5, pass_right=right, pass_responses=responses)
    with pytest.raises(DataError, match=r"d\.jsonl, row 1: pass_right = .* are no counts"):
        checked(config(source, **RATED))


def test_a_dry_run_shows_it_all(tmp_path: Path) -> None:
    """Before any model: what is cut, what is foretold, how long an epoch is."""
    recipe = helpers.write_recipe(tmp_path)
    source = rated(tmp_path / "r.jsonl", *([0.5] * 8), 1.0)
    words = (f"data.source={source}", "data.rating_column=pass_rate", "data.max_pass_rate=0.9", "data.holdout=2")
    code, out, err = helpers.quiet_dapo("train", recipe, *words, "--dry-run")
    assert code == 0, err
    assert "1 above it are left out" in out
    assert "note: ratings: 6 of 6 problems have a pass_rate; of the draws: medium 100.0%" in out
    assert "an epoch is 6 prompts drawn, and 2 full steps draw 8 or more (1.33 epochs)" in out


# --- sources that judge their own answers -----------------------------------------------------------


def two_sources(folder: Path, reward: dict[str, Any], **columns: Any) -> list[dict[str, Any]]:
    """A source judged by [reward] and one that says otherwise."""
    first = helpers.write_rows(folder / "a.jsonl", [{"prompt": f"a {i}", "answer": "7"} for i in range(20)])
    rows = [{"prompt": f"b {i}", "answer": "7", **columns} for i in range(20)]
    return [{"source": str(first)}, {"source": str(helpers.write_rows(folder / "b.jsonl", rows)), "reward": reward}]


def prompts_of(made: Config) -> list[Prompt]:
    """One prompt of each source."""
    return [own[0] for own in tokenise_data(made, checked(made), tiny.tokenizer()).by_source]


def test_two_sources_judge_one_text_differently(tmp_path: Path) -> None:
    """In one grader: [reward] reads the answer line (5, wrong), the second source the box (7, right)."""
    made = config(two_sources(tmp_path, {"extract": ["boxed"]}), reward__extract=["answer_line"])
    response = Response(
        token_ids=np.zeros(1, np.int32),
        generated=np.ones(1, np.bool_),
        engine_logprobs=np.zeros(1, np.float32),
        finish=Finish.STOP,
        token_versions=((0, 1),),
    )
    scorers = Scorers.of(made)
    grader = GroupGrader(made, scorers.score, lambda ids: TEXT, (), equal=scorers.equal)
    done = FinishedDraw(draw=0, responses=(response,))
    scores = [grader.group(done, prompt).rollouts[0].score for prompt in prompts_of(made)]
    assert [(score.verdict, score.extracted) for score in scores] == [(Verdict.WRONG, "5"), (Verdict.CORRECT, "7")]


def test_a_source_takes_the_rest_from_the_run(tmp_path: Path) -> None:
    """An override is on top of [reward]: convert_units of the run holds where only extract is another."""
    made = config(two_sources(tmp_path, {"extract": ["boxed"]}), reward__convert_units=True)
    scorers = Scorers.of(made)
    for prompt in prompts_of(made):
        compared = scorers.equal(prompt)
        assert compared is not None
        assert list(compared([(r"5\text{ m}", r"500\text{ cm}"), (r"5\text{ m}", r"4\text{ m}")])) == [True, False]


def test_golds_are_checked_by_their_own_judge(tmp_path: Path) -> None:
    """A row without an answer is fine where tests judge, and a row without tests is not."""
    tests = {"functions": ["python-tests"]}
    good = two_sources(tmp_path, tests, answer="", tests=["assert f(1) == 1"])
    assert [len(own) for own in checked(config(good)).training] == [20, 20]
    with pytest.raises(DataError, match=r"b\.jsonl, row 1.*there is no column 'tests'"):
        checked(config(two_sources(tmp_path, tests)))
    with pytest.raises(DataError, match=r"b\.jsonl, row 1.*can't be graded"):
        checked(config(two_sources(tmp_path, {"extract": ["boxed"]}, answer="")))


def test_programs_are_not_compared_and_answers_are(tmp_path: Path) -> None:
    """maj@k asks the prompt's own judge."""
    made = config(two_sources(tmp_path, {"functions": ["python-tests"]}, tests=["assert f(1) == 1"]))
    scorers = Scorers.of(made)
    assert [scorers.equal(prompt) is None for prompt in prompts_of(made)] == [False, True]


def test_a_set_of_programs_beside_sets_of_answers() -> None:
    """livecodebench is refused without the judge that runs it, in [reward] or its own table."""
    with pytest.raises(ConfigError, match=r"give its table reward = \{functions"):
        checked_sets([{"source": "livecodebench"}])
    own = [{"source": "livecodebench", "reward": {"functions": ["python-tests"]}}]
    with pytest.raises(DataError, match="livecodebench"):  # past the check of judges: the file is not there
        checked_sets(own)
    with pytest.raises(ConfigError, match=r'data\.template = "dapo" for an answer line'):
        checked_sets(own, data__template="dapo")


def checked_sets(sets: list[dict[str, Any]], **settings: Any) -> None:
    """Reads evaluation sets from a folder without any."""
    build.evaluation_data(config("d.jsonl", eval__data=sets, eval__data_dir="/nowhere", **settings))


def test_the_settings_of_an_evaluation_say_it(tmp_path: Path) -> None:
    """Figures of a set that is judged in another way are not compared in silence; without overrides nothing is new."""
    made = config(two_sources(tmp_path, {"extract": ["boxed"]}), data__holdout=4, eval__data="holdout")
    own = build.evaluation_data(made)
    settings = evaluation_settings(made, own.evaluation, tokenise_data(made, own, tiny.tokenizer()).tests)
    assert settings["grader"]["by_set"] == {"holdout": [{"extract": ["boxed"]}]}
    assert from_tree(resolve(made)) == made
    plain = config(str(tmp_path / "a.jsonl"), data__holdout=4, eval__data="holdout")
    data = build.evaluation_data(plain)
    settings = evaluation_settings(plain, data.evaluation, tokenise_data(plain, data, tiny.tokenizer()).tests)
    assert "by_set" not in settings["grader"]


# --- mixtures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["off", "be brief"])
def test_a_mixture_of_texts_and_messages(tmp_path: Path, system: str) -> None:
    """Weights, the system turn and the order by (seed, epoch, index) hold for lists of messages as for texts."""
    texts = [{"prompt": f"a {i}", "answer": "7"} for i in range(6)]
    turns = [{"prompt": [{"role": "user", "content": f"b {i}"}], "answer": "7"} for i in range(3)]
    sources = [
        {"source": str(helpers.write_rows(tmp_path / "a.jsonl", texts)), "weight": 1},
        {"source": str(helpers.write_rows(tmp_path / "b.jsonl", turns)), "weight": 3},
    ]
    made = config(sources, data__system=system)
    data = tokenise_data(made, checked(made), tiny.tokenizer())
    first, again = (build.make_stream(config(sources, data__system=system, train__seed=3), data) for _ in range(2))
    other = build.make_stream(config(sources, train__seed=4), data)
    drawn, same, others = ([made.prompt(i) for i in range(9 * 40)] for made in (first, again, other))
    assert [prompt.id for prompt in drawn] == [prompt.id for prompt in same] != [prompt.id for prompt in others]
    share = sum(prompt.problem.startswith("b") for prompt in drawn) / len(drawn)
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / len(drawn)) ** 0.5
    for prompt in drawn:
        before = () if system == "off" else ({"role": "system", "content": system},)
        assert prompt.messages == (*before, {"role": "user", "content": prompt.problem})
        assert prompt.text == "<bos>" + "".join(f"{turn['content']}<turn>" for turn in prompt.messages)


# --- whole runs -------------------------------------------------------------------------------------

CARRY = (
    "sampling.schedule=streaming",
    "sampling.gen_prompts=6",
    "sampling.surplus=carry",
    "sampling.max_staleness=1",
    "algorithm.importance_cap=2",
    "sampling.skip_solved_after=1",
    "train.num_steps=3",
)


def test_a_run_over_two_judges(tmp_path: Path) -> None:
    """The second source looks for a box, which the tiny model never writes; a set of its own does so, too."""
    sources = two_sources(tmp_path, {"extract": ["boxed"]})
    test = helpers.write_rows(tmp_path / "e.jsonl", [{"prompt": f"e {i}", "answer": "7"} for i in range(4)])
    tables = ", ".join(
        f'{{source = "{s["source"]}"' + (', reward = {extract = ["boxed"]}}' if "reward" in s else "}") for s in sources
    )
    evaluated = f'eval.data=["holdout", {{source = "{test}", reward = {{extract = ["boxed"]}}}}]'
    words = (f"data.source=[{tables}]", evaluated, "train.num_steps=1", "sampling.gen_prompts=12")
    run = helpers.train(tmp_path, *words)
    rows = RunDirectory.open(str(run)).rollouts(1)
    verdicts = {letter: {r["verdict"] for r in rows if r["question"].startswith(letter)} for letter in "ab"}
    assert verdicts["b"] == {"unparsed"}
    assert "correct" in verdicts["a"]
    last = helpers.metrics(run)[-1]
    assert last["eval/e/parsed_fraction"] == 0
    assert last["eval/holdout/parsed_fraction"] > 0
    written = json.loads((run / "config.resolved.json").read_text(encoding="utf-8"))
    assert written["data"]["source"][1]["reward"]["extract"] == ["boxed"]
    settings = json.loads((run / "eval" / "step_000001.json").read_text(encoding="utf-8"))["settings"]
    assert settings["grader"]["by_set"]["e"] == [{"extract": ["boxed"]}]


@pytest.mark.parametrize("words", [("sampling.gen_prompts=3",), CARRY])
def test_epochs_are_counted_in_prompts_drawn(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Rejected draws count, skipped prompts move the epoch alone, and both stand where the checkpoint stands."""
    run = helpers.train(tmp_path, *words)
    rows = [row for row in helpers.metrics(run) if row["step"]]
    drawn = skipped = 0.0
    for row in rows:
        drawn += row["sampling/draws"] - row["sampling/carried_in_draws"]
        drawn += row["sampling/surplus_draws"] + row["sampling/carried_draws"]
        skipped += row["sampling/skipped_prompts"]
        assert row["data/prompts_drawn"] == drawn
        assert row["data/epoch"] == (drawn + skipped) / 36
    assert drawn > 4 * len(rows)  # some were rejected
    (state,) = (run / "checkpoints").glob(f"step_{len(rows):06d}/state.json")
    assert json.loads(state.read_text(encoding="utf-8"))["next_place"] == drawn + skipped


def test_epochs_go_on_where_sampling_was_exhausted(tmp_path: Path) -> None:
    """A filling that was stopped and gone on with counts each of its draws once."""
    words = ("train.num_steps=1", "sampling.max_rounds=1", "sampling.on_exhausted=stop")
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert code == 3, err
    code, _, err = helpers.quiet_dapo("train", "--resume", tmp_path / "run", "sampling.max_rounds=10")
    assert code == 0, err
    straight = helpers.train(tmp_path / "straight", "train.num_steps=1", "sampling.max_rounds=10")
    (row,), (other,) = ([row for row in helpers.metrics(run) if row["step"]] for run in (tmp_path / "run", straight))
    assert row["data/prompts_drawn"] == row["sampling/draws"] + row["sampling/surplus_draws"] > 4
    assert row["data/prompts_drawn"] == other["data/prompts_drawn"] == pytest.approx(36 * other["data/epoch"])
    assert row["data/epoch"] == other["data/epoch"]
