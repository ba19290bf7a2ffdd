"""The JSON Schema of recipe files: what dapo reads passes, what it refuses for its name or type does not."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import helpers_run as helpers
from dapo.config import load_config, recipe_names
from dapo.config.json_schema import SCHEMA_FILE, recipe_schema
from dapo.config.keys import Tree, at, defaults, fields, section_model
from dapo.config.layers import merge
from dapo.config.schema import Config
from dapo.errors import ConfigError

SCHEMA = recipe_schema()
CHECKER = jsonschema.Draft202012Validator(SCHEMA)


def faults(text: str) -> list[str]:
    """What the schema says against a TOML text."""
    return [error.message for error in CHECKER.iter_errors(tomllib.loads(text))]


def test_it_is_a_schema_of_its_draft() -> None:
    """By the draft's own schema; every reference leads somewhere."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    text = json.dumps(SCHEMA)
    assert "null" not in text  # TOML has none
    assert {part.split('"')[0] for part in text.split("#/$defs/")[1:]} == set(SCHEMA["$defs"])


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_and_their_copies_pass(name: str, tmp_path: Path) -> None:
    """As they are written, extends and provenance included, and with every key spelled out."""
    assert faults((resources.files("dapo.recipes") / f"{name}.toml").read_text(encoding="utf-8")) == []
    copy = tmp_path / "mine.toml"
    assert helpers.quiet_dapo("recipe", "copy", name, copy)[0] == 0
    assert faults(copy.read_text(encoding="utf-8")) == []


def keys() -> list[str]:
    """Dotted keys of settings."""
    return [key for key, _ in fields() if key not in ("schema", "provenance")]


def node(key: str) -> dict[str, Any]:
    """What the schema says of a key."""
    found: dict[str, Any] = SCHEMA
    for name in key.split("."):
        found = found["properties"][name]
        if "$ref" in found:
            found = SCHEMA["$defs"][found["$ref"].removeprefix("#/$defs/")]
    return found


@pytest.mark.parametrize("key", keys())
def test_every_key_is_there_with_its_meaning(key: str) -> None:
    """The field's own words, and the default as TOML has it."""
    info = dict(fields())[key]
    assert node(key)["description"] == " ".join((info.description or "").split())
    if not info.is_required():
        usual = at(defaults(), key) if key not in defaults() else defaults()[key]
        assert node(key)["default"] == ("off" if usual is None else usual)


@pytest.mark.parametrize("key", [key for key, value in defaults().items() if value is None])
def test_what_may_be_off_may_be_off(key: str) -> None:
    """And is never null; what may not be off is refused."""
    assert faults(f'{key} = "off"') == []
    assert not [part for part in node(key)["anyOf"] if part.get("type") == "null"]


SAMPLES = ('"off"', '"x"', "true", "0", "1", "-1", "0.5", "1e-6", "3", "[]", "[0.9, 0.99]", "{}", '["boxed"]', '["x"]')


@pytest.mark.parametrize("key", keys())
def test_it_says_what_dapo_says(key: str) -> None:
    """Each kind of value for each key, beside the models' verdict. Switches alone are stricter: no "off", 0, 1."""
    lenient = ('"off"', "0", "1") if node(key).get("type") == "boolean" else ()
    for sample in SAMPLES:
        tree = tomllib.loads(f"{key} = {sample}")
        wanted = is_read(tree) and sample not in lenient
        assert CHECKER.is_valid(tree) is wanted, sample


def is_read(tree: Tree) -> bool:
    """Whether the configuration's models take it (what concerns several keys aside)."""
    try:
        Config.model_validate(merge({"model": {"path": "x"}, "data": {"source": "x"}}, tree))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [
        "[train]\nlr = 1e-6",
        "[trian]\nnum_steps = 3",
        'sampling.fliter = "off"',
        'schema_version = 1\n[model]\npath = "x"',
        "schema = 2",
        'train.num_steps = "3"',
        "train.num_steps = 3.5",
        "train.num_steps = 0",
        "train.num_steps = true",
        'train.num_steps = "off"',
        "train.learning_rate = 0",
        'algorithm.advantage = "groups"',
        "algorithm.clip_low = 1.0",
        'algorithm.clip_high = "none"',
        "train.betas = [0.9]",
        "train.betas = [0.9, 1.0]",
        "data.source = [{ size = 3 }]",
        'data.source = [{ source = "x", sizes = 3 }]',
        'data.source = [{ source = "x", reward = { overlong = "soft" } }]',
        'reward.functions = [{ function = "f.py:f", wieght = 1 }]',
        'reward.extract = ["boxes"]',
        'extends = "quickstrat"',
        "extends = 3",
        '[provenance]\n"train.lr" = "chosen: x"',
        '[provenance]\n"train.seed" = "because"',
        "train = 3",
    ],
)
def test_mistakes_do_not_pass(text: str, tmp_path: Path) -> None:
    """A misspelt key, a wrong type, a value out of range; and dapo refuses each, too."""
    assert faults(text) != []
    path = tmp_path / "mine.toml"
    lines = text if "extends" in text or text.startswith("schema_version") else f'extends = "tiny"\n{text}'
    path.write_text(lines, encoding="utf-8")
    if '"3"' not in text and not text.startswith("schema_version"):
        with pytest.raises(ConfigError):
            load_config(str(path))


@pytest.mark.parametrize(
    "text",
    [
        'extends = "quickstart"',
        'extends = "../mine.toml"\n[train]\nseed = 3',
        "[sampling]\ngen_prompts = 8",
        '[provenance]\n"train.seed" = "chosen: x"',
        'data.source = [{ source = "x", options = { any = [1, { thing = 2.0 }] } }]',
        "model.chat_template_kwargs = { enable_thinking = false }",
        'eval.data = ["aime24", { source = "x.jsonl", name = "mine" }]',
        'reward.functions = ["grader", { function = "f.py:f", weight = 0.1 }]',
    ],
)
def test_overlays_and_free_tables_pass(text: str) -> None:
    """Nothing is required at the top: another file, or a word, may give it."""
    assert faults(text) == []


def test_sections_are_described() -> None:
    """A table's heading is completed with what it is about."""
    for name, info in Config.model_fields.items():
        if section_model(info.annotation):
            assert node(name)["description"]


# --- the verb ----------------------------------------------------------------------------------------------


def test_the_verb_writes_it_and_replaces_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a file that a copied recipe names in its first line; another file is not touched."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = helpers.quiet_dapo("recipe", "copy", "tiny", "mine.toml")
    assert code == 0
    assert f"dapo config --schema -o {SCHEMA_FILE}" in out
    assert Path("mine.toml").read_text(encoding="utf-8").startswith(f"#:schema ./{SCHEMA_FILE}\n# A copy of tiny.")
    assert helpers.quiet_dapo("config", "--schema", "-o", SCHEMA_FILE)[0] == 0
    assert helpers.strict_json(Path(SCHEMA_FILE).read_text(encoding="utf-8")) == recipe_schema()
    assert helpers.quiet_dapo("config", "--schema")[1] == Path(SCHEMA_FILE).read_text(encoding="utf-8")
    old = Path(SCHEMA_FILE).read_text(encoding="utf-8").replace('"default": 512', '"default": 8')
    Path(SCHEMA_FILE).write_text(old, encoding="utf-8")
    assert helpers.quiet_dapo("config", "--schema", "-o", SCHEMA_FILE)[0] == 0
    assert helpers.strict_json(Path(SCHEMA_FILE).read_text(encoding="utf-8")) == recipe_schema()
    assert "--schema" not in helpers.quiet_dapo("recipe", "copy", "tiny", "other.toml")[1]
    shown = helpers.quiet_dapo("recipe", "show", "mine.toml")[1]
    assert shown.startswith("# mine.toml\n#   A copy of tiny.")


@pytest.mark.parametrize(
    ("words", "needle"),
    [
        (["quickstart"], "leave out quickstart"),
        (["--explain"], "leave out --explain"),
        (["-o", "mine.toml"], "ends in .json"),
        (["-o", "notes.json"], "there already"),
        (["-o", "bytes.json"], "there already"),
        (["-o", "folder.json"], "folder.json"),
        (["-o", "no/schema.json"], "no/schema.json"),
        (["--from-verl", "x=1"], "exclude each other"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_the_verb_refuses(words: list[str], needle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, and no file is changed."""
    monkeypatch.chdir(tmp_path)
    Path("notes.json").write_text('{"title": "mine"}')
    Path("bytes.json").write_bytes(b"\xff\xfe")
    Path("folder.json").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    code, out, err = helpers.quiet_dapo("config", "--schema", *words)
    assert (code, out) == (2, "")
    assert needle in err
    assert len(err.splitlines()) == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
