"""The verbs: what each prints where, and what it needs to be loaded for."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dapo
import helpers_run as helpers
import tiny
from dapo.config import Config, load_config, recipe_names
from dapo.config.load import all_keys
from dapo.config.origins import origin_of

VERBS = [
    "train",
    "eval",
    "data",
    "compare",
    "progress",
    "report",
    "browse",
    "sample",
    "chat",
    "grade",
    "config",
    "doctor",
    "plan",
    "export",
    "recipe",
    "completion",
]
PARTS = ("prepare", "inspect", "rate")
RECIPE_PARTS = ("list", "show", "diff", "copy", "table", "verify")
QUESTION = "say aa"


@pytest.fixture(scope="module")
def run() -> Path:
    """A finished run; only read here."""
    return helpers.finished_run()


def model_of(run: Path) -> Path:
    """The model of its last checkpoint."""
    return run / "checkpoints" / "step_000002" / "model"


def ok(*words: str | Path) -> str:
    """stdout of a command that has to end with 0."""
    code, out, err = helpers.quiet_dapo(*words)
    assert code == 0, err
    return out


# --- help -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize(
    "verb", ["", *VERBS, *(f"recipe {part}" for part in RECIPE_PARTS), *(f"data {part}" for part in PARTS)]
)
def test_every_verb_has_help(verb: str, flag: str) -> None:
    """On stdout, exit 0, with what the verb is for."""
    out = ok(*verb.split(), flag)
    assert out.startswith("Usage: dapo")
    assert len(out.splitlines()) > 3
    if not verb:
        assert all(f"  {name} " in out for name in VERBS)
        assert "dapo train quickstart" in out


def test_no_words_at_all_show_the_help() -> None:
    """The first thing a person types is answered with the verbs, not called an error."""
    code, out, err = helpers.quiet_dapo()
    assert "error:" not in err
    assert "Usage: dapo" in out + err
    assert code in (0, 2)


def test_version() -> None:
    """The package's own."""
    assert dapo.__version__ in ok("--version")


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["config", "quickstart"],
        ["config", "--schema"],
        ["config", "--explain"],
        ["grade", "7", "7"],
        ["completion", "bash"],
        ["recipe", "list"],
        ["recipe", "show", "quickstart"],
        ["recipe", "diff", "quickstart", "quickstart"],
        ["recipe", "table"],
        ["plan", "--help"],
        ["recipe", "verify", "--help"],
        ["train", "--help"],
        ["data", "--help"],
        ["data", "prepare", "--help"],
    ],
    ids=" ".join,
)
def test_light_verbs_load_no_torch(words: list[str]) -> None:
    """They answer at once, and without a GPU stack."""
    code = (
        "import sys\nfrom dapo.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    print('exit', end.code, file=sys.stderr)\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'scipy'} & {name.split('.')[0] for name in sys.modules}\n"
        "print('heavy', sorted(heavy), file=sys.stderr)"
    )
    source = str(Path(dapo.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "heavy []"
    assert "exit 2" not in done.stderr
    assert done.stdout


# --- config and recipes ------------------------------------------------------------------------------------


def test_config_prints_every_key_with_its_value(tmp_path: Path) -> None:
    """And what it prints can be given back as key=value words."""
    recipe = helpers.write_recipe(tmp_path)
    lines = ok("config", recipe, "train.learning_rate=1e-6").splitlines()
    printed = dict(line.split(" = ", 1) for line in lines)
    assert set(printed) == set(all_keys()) - {"provenance"}
    assert float(printed["train.learning_rate"]) == 1e-6
    assert printed["sampling.gen_prompts"] == '"off"'
    words = [f"{key}={value}" for key, value in printed.items()]
    assert unsourced(load_config(*words)) == unsourced(load_config(recipe, "train.learning_rate=1e-6"))


def unsourced(config: Config) -> Config:
    """Without where values come from, which a word takes away."""
    return config.model_copy(update={"provenance": {}})


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_survives_printing(name: str) -> None:
    """For the shipped ones, tables of sources included."""
    printed = dict(line.split(" = ", 1) for line in ok("config", name).splitlines())
    again = load_config(*(f"{key}={value}" for key, value in printed.items()))
    assert unsourced(again) == unsourced(load_config(name))


def test_config_json_is_the_resolved_config(tmp_path: Path) -> None:
    """The same that a run writes; a recipe can be made of it."""
    recipe = helpers.write_recipe(tmp_path)
    assert load_config(helpers.strict_json(ok("config", recipe, "--json"))) == load_config(recipe)


def test_config_explain_gives_meaning_and_other_names() -> None:
    """Every key with its documentation; well-known names of verl and TRL; without a recipe too."""
    out = ok("config", "--explain")
    lines = out.splitlines()
    for key in set(all_keys()) - {"provenance"}:
        place = next(i for i, line in enumerate(lines) if line.startswith(f"{key} = "))
        assert len(lines[place + 1].strip()) > 5, key
    assert "num_generations" in out
    assert "(must be set)" in out


def test_config_schema_is_a_json_schema() -> None:
    """Editors complete recipes with it."""
    schema = helpers.strict_json(ok("config", "--schema"))
    assert {"model", "data", "train"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False  # more of it in test_json_schema.py


def test_recipes_are_listed_and_shown() -> None:
    """Each with its description; show gives every value, and where it comes from."""
    out = ok("recipe", "list")
    for name in recipe_names():
        config = load_config(name)
        line = next(line for line in out.splitlines() if line.split()[0] == name)
        assert config.description
        assert config.description in line
        assert config.name == name
        shown = ok("recipe", "show", name)
        assert f"train.num_steps = {config.train.num_steps}" in shown
        for key in set(all_keys()) - {"provenance"}:
            part = shown.partition(f"\n{key} = ")[2]
            assert str(origin_of(config, key)) in part.partition("\n    ")[0], key


# --- grade -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gold", "verdict", "extracted", "stage"),
    [
        ("so it is 7, I am sure", "7", "correct", "7", "last_math"),
        ("Answer: 8", "7", "wrong", "8", "answer_line"),
        (r"\boxed{7.0}", "7", "correct", "7.0", "boxed"),
        ("I have no idea what it could be", "7", "unparsed", None, None),
        ("-5", "-5", "correct", "-5", "whole"),
    ],
)
def test_grade(text: str, gold: str, verdict: str, extracted: str | None, stage: str | None) -> None:
    """Exit 0 whatever the verdict: it is the answer, not a failure. A negative number is no option."""
    result = helpers.strict_json(ok("grade", text, gold, "--json"))
    assert result["verdict"] == verdict
    assert result["extracted"] == extracted
    assert result["reward"] == (1.0 if verdict == "correct" else -1.0)
    assert ok("grade", text, gold).startswith(verdict)


def test_grade_looks_where_it_is_told() -> None:
    """--extract is reward.extract."""
    assert ok("grade", "Answer: 8, or 7", "7", "--extract", "last_number").startswith("correct")
    assert ok("grade", "Answer: 8\nor 7", "7").startswith("wrong")


# --- train -------------------------------------------------------------------------------------------------


def test_dry_run_writes_nothing_and_loads_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It checks configuration and data, and prints the batch sizes."""
    monkeypatch.chdir(tmp_path)
    recipe = helpers.write_recipe(tmp_path)
    for place in ("dapo.build.load_model", "dapo.build.load_tokenizer"):
        monkeypatch.setattr(place, lambda *a, **k: pytest.fail("the model was loaded"))
    before = helpers.tree(tmp_path)
    out = ok("train", recipe, "--dry-run", "--output-dir", "run")
    assert helpers.tree(tmp_path) == before
    assert "4 prompts x 4 = 16 responses" in out
    assert "36 training problems, 4 evaluation problems" in out
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    code, _, err = helpers.quiet_dapo("train", recipe, "--dry-run")
    assert code == 2
    assert "row 1" in err


def test_a_dry_run_answers_json_with_json(tmp_path: Path) -> None:
    """--json gives machine output on stdout, whatever the verb did."""
    helpers.strict_json(ok("train", helpers.write_recipe(tmp_path), "--dry-run", "--json"))


def test_train_json_is_the_last_metrics(tmp_path: Path) -> None:
    """stdout parses as a whole; everything for people is on stderr."""
    recipe = helpers.write_recipe(tmp_path)
    code, out, err = helpers.quiet_dapo("train", recipe, "--json", "--output-dir", tmp_path / "run")
    assert code == 0
    assert helpers.strict_json(out) == helpers.metrics(tmp_path / "run")[-1]
    for needle in ("4 prompts x 4 = 16 responses", "writing to", "step 1/2", "step 2/2", "before and after"):
        assert needle in err
    for hint in ("dapo sample", "dapo chat", "dapo eval", "--resume"):
        assert hint in err


def test_quiet_is_quiet(tmp_path: Path) -> None:
    """-q: nothing on either stream."""
    code, out, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), "-q", "--output-dir", tmp_path / "r")
    assert (code, out, err) == (0, "", "")


# --- verbs that use a model ----------------------------------------------------------------------------------


def huggingface_greedy(folder: Path, question: str, tokens: int) -> str:
    """Plain transformers, without a line of ours."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    turns = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        done = model.generate(ids, max_new_tokens=tokens, do_sample=False, eos_token_id=tiny.EOS_ID)[0, ids.shape[1] :]
    return str(tokenizer.decode(done, skip_special_tokens=True))


@pytest.mark.parametrize("question", [QUESTION, "what is 3 + 4?", "say zz"])
def test_the_checkpoint_is_a_plain_model_that_says_the_same(question: str) -> None:
    """transformers alone loads it, and its greedy text is the engine's."""
    run = helpers.babbling_run()
    wanted = huggingface_greedy(model_of(run), question, 24)
    out = ok("sample", run, question, "-n", "1", "--temperature", "0", "--max-tokens", "24")
    assert out == f"[1] {wanted}\n"
    assert wanted != huggingface_greedy(helpers.cold_model(), question, 24)


def test_sample_gives_n_responses_by_the_seed(run: Path) -> None:
    """The same seed, the same texts; another seed, others."""
    out = ok("sample", run, QUESTION, "-n", "3", "--max-tokens", "12")
    assert [line.split("]")[0] for line in out.splitlines() if line.startswith("[")] == ["[1", "[2", "[3"]
    assert ok("sample", run, QUESTION, "-n", "3", "--max-tokens", "12") == out
    assert ok("sample", run, QUESTION, "-n", "3", "--max-tokens", "12", "--seed", "1") != out
    assert ok("sample", f"{run}@2", QUESTION, "-n", "3", "--max-tokens", "12") == out


def test_sample_takes_a_bare_model(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a recipe, and whatever the model's number of positions: no key=value word can lower a limit here.

    In float32, as the run says; a bare model is in what the machine multiplies.
    """
    monkeypatch.setattr("dapo.model.loading._cpu_multiplies_bf16", lambda: False)
    words = (QUESTION, "-n", "3", "--max-tokens", "12")
    assert ok("sample", model_of(run), *words) == ok("sample", run, *words)


def test_chat_keeps_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer is to both questions and the first answer; an empty line ends."""
    run = helpers.babbling_run()
    words = ("chat", run, "--temperature", "0", "--max-tokens", "8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("say aa\nsay bb\n\nnever read\n"))
    answers = [line.partition("model> ")[2] for line in ok(*words).splitlines() if "model> " in line]
    assert len(answers) == 2
    assert answers[0] == huggingface_greedy(model_of(run), "say aa", 8)
    dialogue = f"say aa{tiny.TURN}{answers[0]}{tiny.TURN}say bb"  # the tiny template joins turns so
    assert answers[1] == huggingface_greedy(model_of(run), dialogue, 8)
    for other in (f"say aa{tiny.TURN}say bb", "say bb"):  # turns left out would be seen
        assert answers[1] != huggingface_greedy(model_of(run), other, 8)


def test_a_chat_may_outgrow_the_training_prompts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """data.max_prompt_tokens (16 here, 64 in quickstart) is about training; the model has room for 256."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("say aa\nsay bb\nsay cc\n"))
    assert ok("chat", run, "--max-tokens", "8").count("model> ") == 3


def test_chat_ends_with_the_input(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-D is a way out, exit 0."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "model>" not in ok("chat", run, "--max-tokens", "4")


def figures(text: str) -> dict[str, Any]:
    """An evaluation's figures of the held-out set, without the seconds."""
    found: dict[str, Any] = helpers.strict_json(text)["sets"]["holdout"]
    found["spent"].pop("seconds")
    return found


def test_eval_reproduces_the_after_figure(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the run, and on the exported folder by the recipe: the same draws, so exactly the same figures."""
    monkeypatch.chdir(tmp_path)
    after = figures((run / "eval" / "step_000002.json").read_text(encoding="utf-8"))
    before = figures((run / "eval" / "step_000000.json").read_text(encoding="utf-8"))
    assert figures(ok("eval", run, "--json")) == after
    ok("export", run, tmp_path / "exported")
    recipe = run.parent / "recipe.toml"
    assert figures(ok("eval", tmp_path / "exported", "--recipe", recipe, "--json")) == after
    assert figures(ok("eval", helpers.warm_model(), "--recipe", recipe, "--json")) == before
    assert f"{after['accuracy']:.1%}" in ok("eval", run)


def test_eval_takes_its_options(run: Path, tmp_path: Path) -> None:
    """Data, samples, temperature, and a folder with every response."""
    data = helpers.write_rows(tmp_path / "other.jsonl", helpers.problems(3))
    output = tmp_path / "out"
    words = ("--data", str(data), "--k", "5", "--temperature", "0", "--top-p", "1", "-o", str(output), "--json")
    result = helpers.strict_json(ok("eval", run, *words))["sets"]["other"]
    rows = [json.loads(line) for line in (output / "samples" / "other.jsonl").read_text().splitlines()]
    assert (result["problems"], result["k"]) == (3, 5)
    assert len(rows) == 15
    assert sum(row["verdict"] == "correct" for row in rows) / 15 == pytest.approx(result["accuracy"])
    for problem in {row["prompt_id"] for row in rows}:  # greedy: the same text five times
        assert len({row["text"] for row in rows if row["prompt_id"] == problem}) == 1


def test_eval_of_one_problem_is_json(run: Path, tmp_path: Path) -> None:
    """Its interval does not exist; NaN is no JSON."""
    data = helpers.write_rows(tmp_path / "one.jsonl", helpers.problems(1))
    words = ("--data", data, "-o", tmp_path / "out", "--json")
    assert helpers.strict_json(ok("eval", run, *words))["sets"]["one"]["problems"] == 1


@pytest.mark.parametrize(("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_export_is_a_plain_folder(name: str, dtype: torch.dtype, run: Path, tmp_path: Path) -> None:
    """float32 bit by bit, bfloat16 rounded; config, tokenizer and template go along."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = tmp_path / "deep" / "folder"
    ok("export", run, target, "--dtype", name)
    found, source = helpers.weights(target), helpers.weights(model_of(run))
    assert found.keys() == source.keys()
    for key, value in source.items():
        assert found[key].dtype is dtype
        assert torch.equal(found[key], value.to(dtype))
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.dtype is dtype
    assert AutoTokenizer.from_pretrained(target).chat_template == tiny.CHAT_TEMPLATE
    assert [path.name for path in target.parent.iterdir()] == ["folder"]  # nothing left aside


def test_export_takes_a_step_and_refuses_a_full_folder(run: Path, tmp_path: Path) -> None:
    """It never writes over anything."""
    ok("export", f"{run}@2", tmp_path / "two")
    before = helpers.tree(tmp_path)
    for words, needle in (
        ((f"{run}@2", tmp_path / "two"), "not empty"),
        ((f"{run}@7", tmp_path / "seven"), "no checkpoint of step 7; there are: 2"),
        ((f"{run}@last", tmp_path / "last"), "step number"),
    ):
        code, _, err = helpers.quiet_dapo("export", *words)
        assert code == 2
        assert needle in err.splitlines()[-1]
    assert helpers.tree(tmp_path) == before
