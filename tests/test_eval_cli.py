"""dapo eval, compare and progress as a person types them, on the tiny model and a server that answers by rule."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import dapo
import helpers_run as helpers
from dapo.evals.store import EvaluationDirectory
from dapo.run.directory import RunDirectory
from helpers_server import serving

CODE = "import sys\nfrom dapo.cli import main\nmain(sys.argv[1:])"


@pytest.fixture(scope="module")
def run() -> Path:
    """A finished run with evaluations at 0 and 2; only read here."""
    return helpers.finished_run()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default output folders go to a temporary place."""
    monkeypatch.chdir(tmp_path)


def ok(*words: str | Path) -> str:
    """stdout of a command that has to end with 0."""
    code, out, err = helpers.quiet_dapo(*words)
    assert code == 0, err
    return out


def refused(*words: str | Path) -> str:
    """The one line of a command that has to end with 2."""
    code, out, err = helpers.quiet_dapo(*words)
    assert code == 2, err
    line = err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert not out
    assert "Traceback" not in err
    return line


def figures(folder: Path) -> dict[str, Any]:
    """figures.json without the seconds."""
    found: dict[str, Any] = helpers.strict_json((folder / "figures.json").read_text(encoding="utf-8"))["sets"]
    for one in found.values():
        one["spent"].pop("seconds")
    return found


def samples(folder: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Every sample by (set, draw, g), without the seconds."""
    rows = [json.loads(line) for file in (folder / "samples").glob("*.jsonl") for line in file.open(encoding="utf-8")]
    return {(row["set"], row["draw"], row["g"]): {k: v for k, v in row.items() if k != "seconds"} for row in rows}


# --- what is written ------------------------------------------------------------------------------------------


def test_an_evaluation_folder_holds_what_was_asked_every_sample_and_the_figures(run: Path, tmp_path: Path) -> None:
    """Settings, samples, figures.json, figures.md; the same command again samples nothing anew."""
    data = helpers.write_rows(tmp_path / "more.jsonl", helpers.problems(3))
    words = ("eval", run, "--data", f"holdout,{data}", "--k", "4", "-o", "out")
    out = ok(*words)
    assert "holdout" in out
    assert "more" in out
    folder = tmp_path / "out"
    settings = helpers.strict_json((folder / "settings.json").read_text(encoding="utf-8"))
    assert settings["sampling"]["k"] == 4
    assert settings["model"]["path"] == str(run / "checkpoints" / "step_000002" / "model")
    assert len(samples(folder)) == 4 * (4 + 3)
    page = (folder / "figures.md").read_text(encoding="utf-8")
    assert "| more | 3 x 4 |" in page
    assert "95%, this set alone" in page
    before, stamp = figures(folder), (folder / "samples" / "more.jsonl").stat().st_mtime_ns
    again = helpers.quiet_dapo(*words)
    assert again[0] == 0
    assert "7 problems are sampled already" in again[2]
    assert figures(folder) == before
    assert (folder / "samples" / "more.jsonl").stat().st_mtime_ns == stamp
    assert "holds an evaluation with other settings (sampling.k: 4 against 5" in refused(*words[:5], "5", "-o", "out")


def test_json_is_the_figures_file(run: Path, tmp_path: Path) -> None:
    """And --problems adds a table of them to what is printed otherwise."""
    printed = helpers.strict_json(ok("eval", run, "--json", "-o", "out"))
    assert printed == helpers.strict_json((tmp_path / "out" / "figures.json").read_text(encoding="utf-8"))
    shown = ok("eval", run, "-o", "out", "--problems")
    assert "holdout: problems" in shown
    assert "say" in shown


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_an_evaluation_that_was_stopped_goes_on(how: str, run: Path, tmp_path: Path) -> None:
    """Asked to stop it says how to go on, exit 3; killed it goes on too; samples and figures are those of one go."""
    data = helpers.write_rows(tmp_path / "many.jsonl", helpers.problems(30))
    words = ["eval", str(run), "--data", str(data), "--k", "64"]
    source = str(Path(dapo.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *words, "-o", "stopped"],
        env={**os.environ, "PYTHONPATH": source},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    seen = next(line for line in process.stderr if "many: " in line)
    process.send_signal(getattr(signal, how))
    rest = process.stderr.read()
    code = process.wait(timeout=60)
    folder = tmp_path / "stopped"
    if how != "SIGKILL" and code != 0:
        assert code == 3, seen + rest
        assert "go on with: dapo eval --resume stopped" in rest
        assert not (folder / "figures.json").exists()
    code, _, err = helpers.quiet_dapo("eval", "--resume", "stopped")
    assert code == 0, err
    ok(*words, "-o", "whole")
    assert figures(folder) == figures(tmp_path / "whole")
    assert samples(folder) == samples(tmp_path / "whole")
    assert len(samples(folder)) == 30 * 64


def test_another_model_in_the_same_place_is_noticed(run: Path, tmp_path: Path) -> None:
    """Going on with other weights would mix two models' samples."""
    ok("eval", run, "-o", "out")
    settings = tmp_path / "out" / "settings.json"
    changed = json.loads(settings.read_text()) | {}
    changed["model"]["weights"] = "0" * 16
    settings.write_text(json.dumps(changed))
    assert "model.weights" in refused("eval", "--resume", "out")


# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["eval"], ["MODEL or RUN, or --resume"]),
        (["eval", "RUN", "--resume", "x"], ["--resume takes everything from the folder"]),
        (["eval", "--resume", "none"], ["none: no evaluation"]),
        (["eval", "--resume", "latest"], ["no evaluation in evals/"]),
        (["eval", "RUN", "--k", "3", "eval.k=4"], ["--k and eval.k say the same thing"]),
        (["eval", "RUN", "--data", "aime24", "--data-dir", "gone"], ["aime24", "gone"]),
        (["eval", "RUN", "--data", "data.jsonl,data.jsonl"], ["two sets are called data", "name"]),
        (["eval", "RUN", "--data", "holdout,livecodebench"], ["livecodebench", "python-tests"]),
        (["eval", "RUN", "--data", "no.jsonl"], ["no.jsonl", "no such file"]),
        (["eval", "RUN", "-o", "data.jsonl"], ["--output-dir data.jsonl: is a file"]),
        (["eval", "m", "--endpoint", "localhost:1/v1", "--data", "data.jsonl"], ["--endpoint", "http"]),
        (["eval", "m", "--endpoint", "http://127.0.0.1:9/v1", "--data", "data.jsonl"], ["no server answers", "9/v1"]),
        (
            ["eval", "m", "--endpoint", "http://x/v1", "--api-key-env", "NONE_SUCH", "--data", "data.jsonl"],
            ["NONE_SUCH"],
        ),
        (["compare", "out"], ["out", "neither an evaluation's folder"]),
        (["compare", "RUN@0"], ["two evaluations"]),
        (["compare", "RUN@0", "RUN@2", "RUN@2"], ["A1,A2,A3"]),
        (["compare", "RUN@0", "RUN@1"], ["no evaluation at step 1; there are: 0, 2"]),
        (["eval", "RUN", "--recipe", "quickstart"], ["--recipe quickstart", "is a run and has its own"]),
        (["eval", "RUN", "model.path=x"], ["model.path", "leave the word out"]),
        (["eval", "RUN", "--concurrency", "3"], ["--concurrency is for a server"]),
        (["compare", "RUN@0", "RUN@2", "--allow", "bogus"], ["--allow bogus: nothing of that name differs"]),
        (["compare", ",", "RUN@0"], ["nothing stands between the commas"]),
        (["progress", "data.jsonl"], ["no run directory"]),
        (["progress", "RUN", "--plot", "x.gif"], ["--plot x.gif", ".svg"]),
        (["progress", "RUN", "--plot", "gone/x.svg"], ["--plot gone/x.svg", "can't be written"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_line(words: list[str], parts: list[str], run: Path, tmp_path: Path) -> None:
    """Exit 2, what and how to mend it, and no folder left behind."""
    helpers.write_rows(tmp_path / "data.jsonl", helpers.problems(2))
    line = refused(*(word.replace("RUN", str(run)) for word in words))
    for part in parts:
        assert part in line
    assert sorted(path.name for path in tmp_path.iterdir()) in (["data.jsonl"], ["data.jsonl", "evals"])
    assert not list(tmp_path.glob("evals/*/figures.json"))


# --- compare and progress ------------------------------------------------------------------------------------------


def test_compare_takes_folders_and_steps_of_a_run(run: Path, tmp_path: Path) -> None:
    """A run's own evaluation and `dapo eval` of that step are the same samples: no difference at all."""
    ok("eval", f"{run}@2", "-o", "after")
    data = helpers.strict_json(ok("compare", f"{run}@2", "after", "--json"))
    assert data["sets"]["holdout"]["paired"]["difference"] == 0
    assert data["sets"]["holdout"]["paired"]["same"] == 4
    steps = helpers.strict_json(ok("compare", f"{run}@0", f"{run}@2", "--json"))["sets"]["holdout"]
    assert steps["after"] - steps["before"] == pytest.approx(steps["paired"]["difference"])
    shown = ok("compare", f"{run}@0", "after")
    assert "B - A, points" in shown
    assert "sign-flip" in shown
    assert "| holdout |" in ok("compare", f"{run}@0", "after", "--markdown")


def test_compare_refuses_other_settings_unless_allowed_by_name(run: Path, tmp_path: Path) -> None:
    """The line names what differs and the word that allows it."""
    ok("eval", run, "-o", "a")
    ok("eval", run, "-o", "b", "--temperature", "0.5")
    line = refused("compare", "a", "b")
    assert "sampling.temperature: 1.0 against 0.5" in line
    assert "--allow temperature" in line
    assert "allowed: sampling.temperature" in ok("compare", "a", "b", "--allow", "temperature")
    ok("eval", run, "-o", "c", 'reward.extract=["boxed"]')
    assert "--allow extract" in refused("compare", "a", "c")
    ok("eval", run, "-o", "d", "--seed", "5")
    ok("compare", "a", "d")


def test_compare_over_seeds(run: Path, tmp_path: Path) -> None:
    """Groups with commas; a single group gives its mean."""
    for seed in range(4):
        ok("eval", run, "-o", f"s{seed}", "--seed", str(seed))
    both = helpers.strict_json(ok("compare", "s0,s1", "s2,s3", "--json"))["sets"]["holdout"]
    means = [sum(both[side]["values"]) / 2 for side in ("before", "after")]
    assert both["difference"] == pytest.approx(means[1] - means[0])
    one = helpers.strict_json(ok("compare", "s0,s1,s2", "--json"))["sets"]["holdout"]
    assert one["mean"] == pytest.approx(sum(one["values"]) / 3)
    assert "over training seeds" in ok("compare", "s0,s1,s2")
    assert "is named twice" in refused("compare", "s0,s1", "s2,s1")


def test_an_unfinished_evaluation_is_not_compared(run: Path, tmp_path: Path) -> None:
    """Its figures would be over fewer problems."""
    ok("eval", run, "-o", "a")
    (tmp_path / "a" / "figures.json").unlink()
    assert "not finished yet; go on with: dapo eval --resume a" in refused("compare", "a", f"{run}@2")


def test_progress_is_table_plot_and_data(run: Path, tmp_path: Path) -> None:
    """pass@1 beside pass@k at every evaluated step; the plot is the same bytes each time."""
    shown = ok("progress", run)
    assert "pass@1" in shown
    assert "pass@2" in shown
    assert "step 0 to 2, paired" in shown
    points = helpers.strict_json(ok("progress", run, "--json", "--plot", "a.svg"))
    assert list(points["holdout"]) == ["0", "2"]
    ok("progress", run, "--plot", "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
    assert "| 2 |" in ok("progress", run, "--markdown")


# --- the best checkpoint -------------------------------------------------------------------------------------


def test_the_best_checkpoint_is_kept_and_named(tmp_path: Path) -> None:
    """By the stated metric on the validation set, whatever the test set says; RUN@best is that one."""
    test = helpers.write_rows(tmp_path / "test.jsonl", [{"prompt": "say bb", "answer": "7"}])
    words = (f"eval.data=holdout,{test}", "checkpoint.keep_best=1", "checkpoint.keep_last=1", "train.num_steps=4")
    more = ("checkpoint.every=1", "eval.every=1", "checkpoint.best_on=holdout", "checkpoint.best_metric=reward")
    run = helpers.train(tmp_path, *words, *more)
    scores = {row["step"]: row["eval/holdout/reward_mean"] for row in helpers.metrics(run) if row["step"]}
    assert len(scores) == 4
    assert len({row["eval/test/reward_mean"] for row in helpers.metrics(run)}) >= 1
    best = max(sorted(scores, reverse=True), key=lambda step: scores[step])
    kept = sorted(path.name for path in (run / "checkpoints").glob("step_*"))
    assert kept == sorted({f"step_{best:06d}", "step_000004"})
    ok("eval", f"{run}@best", "-o", "out", "--k", "2")
    settings = helpers.strict_json((tmp_path / "out" / "settings.json").read_text())
    assert settings["model"]["path"].endswith(f"step_{best:06d}/model")
    assert "after @ comes a step number, or best" in refused("eval", f"{run}@first")
    code, _, err = helpers.quiet_dapo("eval", f"{run}@best", "-o", "b", "--k", "1")
    assert code == 0
    assert "holdout picked this checkpoint" in err
    code, _, err = helpers.quiet_dapo("eval", f"{run}@best", "--data", test, "-o", "c", "--k", "1")
    assert code == 0, err  # other sets than those it was picked on
    assert "picked this checkpoint" not in err


# --- what stands beside ---------------------------------------------------------------------------------------------


def copy_of(run: Path, tmp_path: Path) -> Path:
    """A run to be changed."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_evaluations_of_an_older_dapo_are_passed_over(run: Path, tmp_path: Path) -> None:
    """progress and the end of a resumed run show what they can, and say what they leave out."""
    copy = copy_of(run, tmp_path)
    (copy / "eval" / "step_000000.json").write_text(json.dumps({"step": 0, "accuracy": 0.5, "interval_95": [0, 1]}))
    shown = ok("progress", copy)
    assert "step 0: left out, written by an older dapo" in shown
    ok("train", "--resume", copy, "train.num_steps=3")
    for damage in ([], {"sets": {"holdout": 5}, "settings": {}}, {"sets": {"holdout": {"k": 1}}, "settings": {}}):
        for file in (copy / "eval").glob("*.json"):
            file.write_text(json.dumps(damage))
        assert "written by an older dapo" in refused("progress", copy)
        assert "without settings" in refused("compare", copy, f"{run}@2")


def test_progress_tells_of_steps_that_were_evaluated_otherwise(run: Path, tmp_path: Path) -> None:
    """One curve over two temperatures is no curve."""
    copy = copy_of(run, tmp_path)
    ok("train", "--resume", copy, "train.num_steps=3", "eval.temperature=0.1")
    shown = ok("progress", copy)
    assert "WARNING: step 0 was evaluated with other settings (sampling.temperature: 1.0 against 0.1)" in shown
    assert "can't be compared" in shown
    assert "paired" not in shown


@pytest.mark.parametrize("text", [r"\[a+b\] \[/x] [bold]", "\x1b[31mred\x1b]0;title\x07", "\ud83d", "[/tmp]"])
def test_no_text_is_markup_or_steers_the_terminal(text: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Problems, golds and responses in the table that ends a run."""
    from rich.console import Console

    from dapo.run.summary import _answers

    rows = RunDirectory.open(str(run)).rollouts(0, "eval")
    hostile = [row | {"question": text, "answer": text, "text": text, "correct": None} for row in rows]
    Console(file=sys.stdout, width=200).print(_answers(hostile, hostile))
    out = capsys.readouterr().out
    assert "\x1b[31m" not in out
    assert "\x07" not in out
    assert text.split("\x1b")[0].replace("\ud83d", "\\ud83d") in out


def test_a_reader_that_leaves_is_no_error(run: Path) -> None:
    """dapo compare ... | head."""
    source = str(Path(dapo.__file__).parents[1])
    words = [sys.executable, "-c", CODE, "compare", f"{run}@0", f"{run}@2"]
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -c 10', "-", *words],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# --- named sets and servers ------------------------------------------------------------------------------------------


def test_a_named_set_from_a_folder(run: Path, tmp_path: Path) -> None:
    """Looked for in --data-dir; another size than the published is told."""
    rows = [{"problem": row["prompt"], "expected_answer": f"0{row['answer']}"} for row in helpers.problems(3)]
    (tmp_path / "data").mkdir()
    helpers.write_rows(tmp_path / "data" / "aime24.jsonl", rows)
    code, out, err = helpers.quiet_dapo("eval", run, "--data", "aime24", "--data-dir", "data", "-o", "out", "--json")
    assert code == 0, err
    assert "aime24: 3 problems were read, the published set has 30" in err
    assert helpers.strict_json(out)["sets"]["aime24"]["problems"] == 3


class Server:
    """Says the number in the question, and for every third seed another."""

    seen: ClassVar[list[dict[str, Any]]] = []
    ends_after: ClassVar[int | None] = None

    @staticmethod
    def reply(body: dict[str, Any]) -> str | int:
        if Server.ends_after is not None and len(Server.seen) >= Server.ends_after:
            return 503
        Server.seen.append(body)
        number = "".join(c for c in body["messages"][-1]["content"].split("say")[-1] if c.isdigit())
        return f"Answer: {number if body['seed'] % 3 else '999'}"


@pytest.fixture
def server() -> Iterator[str]:
    """Its address."""
    Server.seen, Server.ends_after = [], None
    with serving(Server.reply) as address:
        yield address


def test_a_model_behind_a_server(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graded like any other, in the paper's words; the key is sent and never written; resumable; comparable."""
    monkeypatch.setenv("MY_KEY", "sk-secret")
    rows = [{"prompt": f"say {n}", "answer": str(n)} for n in range(10, 22)]
    data = helpers.write_rows(tmp_path / "data.jsonl", rows)
    words = ("eval", "some/model", "--endpoint", server, "--data", data, "--k", "8", "--api-key-env", "MY_KEY")
    result = helpers.strict_json(ok(*words, "-o", "a", "--json"))["sets"]["data"]
    right = sum(seen["seed"] % 3 > 0 for seen in Server.seen)
    assert len(Server.seen) == 96
    assert result["accuracy"] == pytest.approx(right / 96)
    assert result["spent"]["tokens"] == 96 * 5
    asked = Server.seen[0]
    assert asked["model"] == "some/model"
    assert (asked["temperature"], asked["top_p"], asked["max_tokens"]) == (1.0, 0.7, 20480)
    assert asked["messages"][0]["content"].startswith("Solve the following math problem step by step.")
    assert asked["key"] == "Bearer sk-secret"
    assert not any("sk-secret" in file.read_text() for file in (tmp_path / "a").rglob("*.json*"))
    ok(*words, "-o", "b", "data.template=chat")
    assert "--allow template" in refused("compare", "a", "b")
    compared = helpers.strict_json(ok("compare", "a", "b", "--allow", "template", "--json"))["sets"]["data"]
    assert compared["paired"]["same"] == 12
    file = tmp_path / "a" / "samples" / "data.jsonl"
    file.write_bytes(file.read_bytes()[:2000])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    ok("eval", "--resume", "a")
    again = figures(tmp_path / "a")["data"]
    assert again["accuracy"] == result["accuracy"]
    assert EvaluationDirectory(tmp_path / "a").settings()["server"] == {"endpoint": server, "key_variable": "MY_KEY"}
    assert {seen["key"] for seen in Server.seen} == {"Bearer sk-secret"}  # never that of another variable


@pytest.mark.parametrize("name", ["claude-3@20240229", "@cf/meta/llama", "m@best", "latest"])
def test_a_server_knows_its_models_by_any_name(name: str, server: str, tmp_path: Path) -> None:
    """What would be a run or a step here is none there."""
    data = helpers.write_rows(tmp_path / "data.jsonl", [{"prompt": "say 7", "answer": "7"}])
    ok("eval", name, "--endpoint", server, "--data", data, "--k", "1", "-o", "out")
    assert {seen["model"] for seen in Server.seen} == {name}


def test_a_server_that_goes_away_is_noticed_and_may_come_back_elsewhere(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 3 with what to type; the same samples go on at another address; the key in a text is no key on disk."""
    monkeypatch.setattr("dapo.rollout.endpoint_engine.BACKOFF_SECONDS", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", "999")
    rows = [{"prompt": f"say {n}", "answer": str(n)} for n in range(10, 22)]
    data = helpers.write_rows(tmp_path / "data.jsonl", rows)
    Server.ends_after = 10
    words = ("eval", "m", "--endpoint", server, "--data", data, "--k", "2", "--concurrency", "2", "-o", "out")
    code, _, err = helpers.quiet_dapo(*words)
    assert code == 3, err
    last = err.strip().splitlines()[-1]
    assert "3 draws in a row: is the server well?" in last
    assert "of 12 problems are sampled; go on with: dapo eval --resume out" in last
    Server.ends_after = None
    with serving(Server.reply) as other:
        ok("eval", "--resume", "out", "--endpoint", other)
    assert figures(tmp_path / "out")["data"]["problems"] == 12
    text = (tmp_path / "out" / "samples" / "data.jsonl").read_text()
    assert "Answer: ***" in text
    assert "Answer: 999" not in text


def test_a_server_that_never_answers_leaves_nothing(tmp_path: Path) -> None:
    """No folder that --resume latest would take."""
    data = helpers.write_rows(tmp_path / "data.jsonl", [{"prompt": "say 7", "answer": "7"}])
    refused("eval", "m", "--endpoint", "http://127.0.0.1:9/v1", "--data", data)
    assert not list(tmp_path.glob("evals/*"))
