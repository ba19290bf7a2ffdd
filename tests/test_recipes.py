"""Recipes: where values come from, what two differ in, copies, releases, and whether two runs used the same."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import helpers_run as helpers
from dapo.build import with_overrides
from dapo.config import Config, load_config, recipe_names, resolve
from dapo.config import keys as keys_module
from dapo.config.groups import GROUPS, differences, group_of
from dapo.config.keys import NOT_SETTINGS, all_keys, defaults, same, values
from dapo.config.load import from_run, from_tree
from dapo.config.origins import DEFAULT, DEFAULT_ORIGINS, NOT_SAID, Origin, origin_of, origins, parse_origin
from dapo.config.release import digest_at_release, recipe_digest, release, released
from dapo.config.write import as_toml
from dapo.errors import ConfigError
from dapo.run import manifest

VERL = "4f80e465c2ec79ab9c3c30ec74b9745de61d0490"
BASE: dict[str, Any] = {"model.path": "m", "data.source": "d.jsonl"}
PARENT = """
[model]
path = "m"
chat_template_kwargs = { a = 1 }
[data]
source = [{ source = "a", options = { n = 1 } }]
[train]
learning_rate = 1e-5
seed = 7
[algorithm]
clip_low = 0.1
[provenance]
"train.learning_rate" = "paper: Table 1"
"train.seed" = "rebuttal: answer 2"
"algorithm.clip_low" = "code: verl-project/verl@4f80e46 x.sh"
"data.source" = "chosen: because"
"model.chat_template_kwargs" = "chosen: because"
"train.weight_decay" = "paper: the default's own"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the current one, with parent.toml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parent.toml").write_text(PARENT, encoding="utf-8")
    return tmp_path


def ok(*words: str | Path) -> str:
    """stdout of a command that has to end with 0."""
    code, out, err = helpers.quiet_dapo(*words)
    assert code == 0, err
    return out


def refused(*words: str | Path) -> str:
    """The one line of a command that has to end with 2 and say nothing on stdout."""
    code, out, err = helpers.quiet_dapo(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    return err


# --- the grammar -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "origin", "paper"),
    [
        ("paper: section 4.1", Origin("paper", "section 4.1"), "arXiv 2503.14476"),
        ("paper: arXiv 2402.03300 Eq. 3", Origin("paper", "arXiv 2402.03300 Eq. 3"), "arXiv 2402.03300"),
        ("paper:  a\n b ", Origin("paper", "a b"), "arXiv 2503.14476"),
        ("code: verl-project/verl@4f80e46 a.py", Origin("code", "a.py", "verl-project/verl", VERL), None),
        ("code: verl-project/verl@4F80E465 a b", Origin("code", "a b", "verl-project/verl", VERL), None),
        (f"code: verl-project/verl@{VERL} a", Origin("code", "a", "verl-project/verl", VERL), None),
        ("code: verl-project/verl@1234567 a", Origin("code", "a", "verl-project/verl", "1234567"), None),
        ("code: o/r.x@4f80e46 a", Origin("code", "a", "o/r.x", "4f80e46"), None),
        ("rebuttal: answer: 2", Origin("rebuttal", "answer: 2"), None),
        ("chosen: so", Origin("chosen", "so"), None),
    ],
)
def test_an_entry_is_read(text: str, origin: Origin, paper: str | None) -> None:
    """By the grammar; known commits are given whole; what is printed can be read again."""
    found = parse_origin(text, "train.seed")
    assert found == origin
    assert found.paper == paper
    assert parse_origin(str(found), "train.seed").place == origin.place


def test_known_commits_are_whole() -> None:
    """The three that recipes are made of."""
    for repository, short, whole in (
        ("verl-project/verl", "4f80e46", VERL),
        ("verl-project/verl-recipe", "52cdedf", "52cdedf7e0cfbc3b7d518faefcb2035b12f689f4"),
        ("verl-project/verl", "a35908c", "a35908ca3c9632859c58d6a2855d858918ae21dc"),
    ):
        assert parse_origin(f"code: {repository}@{short} x", "k").commit == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("papr: x", "begin with paper:"),
        ("", "begin with paper:"),
        ("paper", "begin with paper:"),
        ("Paper: x", "begin with paper:"),
        ("chosen", "begin with paper:"),
        ("chosen:", "say where or why"),
        ("rebuttal:  \t", "say where or why"),
        ("paper: ", "say where or why"),
        ("paper: arXiv 25.1 x", "arXiv NNNN.NNNNN"),
        ("paper: arXiv:2503.14476", "arXiv NNNN.NNNNN"),
        ("paper: arXiv 2503.144761 x", "arXiv NNNN.NNNNN"),
        ("code: verl 4f80e46", "OWNER/REPO@COMMIT"),
        ("code: verl-project/verl@4f80e4 a", "7 to 40 hex digits"),
        (f"code: verl-project/verl@{VERL}0 a", "7 to 40 hex digits"),
        ("code: verl-project/verl@4f80e4z a", "7 to 40 hex digits"),
        ("code: verl-project/verl@4f80e46", "OWNER/REPO@COMMIT PLACE"),
        ("code: verl-project/verl@4f80e46  ", "OWNER/REPO@COMMIT PLACE"),
        ("code: verl@4f80e46 a", "OWNER/REPO@COMMIT"),
        ("code: a/b/c@4f80e46 a", "OWNER/REPO@COMMIT"),
        ("code: a/b@٤٤٤٤٤٤٤ a", "OWNER/REPO@COMMIT"),
    ],
)
def test_a_bad_entry_is_refused_with_its_key(text: str, said: str) -> None:
    """One line, the key in it."""
    with pytest.raises(ConfigError) as caught:
        load_config(BASE, {"provenance": {"train.seed": text}})
    assert said in caught.value.message
    assert "train.seed" in caught.value.message
    assert len(caught.value.message.splitlines()) == 1


def test_an_entry_about_no_key_is_refused() -> None:
    """With the key that was meant."""
    with pytest.raises(ConfigError, match=r"train\.learning_rate\?"):
        load_config(BASE, {"provenance": {"train.lr": "paper: x"}})


@pytest.mark.parametrize("value", [{"train": {"seed": "paper: x"}}, "paper: x", ["paper: x"], 3])
def test_provenance_of_another_shape_is_refused(value: Any, folder: Path) -> None:
    """Not with a traceback; as a first layer and on top of one that has entries."""
    for first in (BASE, "parent.toml"):
        with pytest.raises(ConfigError, match="provenance"):
            load_config(first, {"provenance": value, "train.seed": 99})


# --- origins of values ----------------------------------------------------------------------------------------


def test_the_table_of_defaults_speaks_of_keys_that_exist() -> None:
    """Each has a default, and an entry by the grammar, of the paper or of a whole commit."""
    assert set(DEFAULT_ORIGINS) <= set(all_keys())
    assert set(DEFAULT_ORIGINS) <= set(defaults())
    for key, text in DEFAULT_ORIGINS.items():
        origin = parse_origin(text, key)
        assert origin.kind in ("paper", "code"), key
        assert origin.kind == "paper" or len(origin.commit or "") == 40, key


def test_origin_of_every_kind_of_value(folder: Path) -> None:
    """The config's entry; the default's; dapo's own default; not said."""
    config = load_config({**BASE, "train.seed": 3, "provenance": {"train.learning_rate": "chosen: mine"}})
    assert origin_of(config, "train.learning_rate") == Origin("chosen", "mine")
    assert origin_of(config, "algorithm.clip_low") == Origin("paper", "section 4.1")
    assert origin_of(config, "train.betas").commit == VERL
    assert origin_of(config, "engine.slots") == DEFAULT
    assert origin_of(config, "train.seed") == NOT_SAID
    assert origin_of(config, "model.path") == NOT_SAID  # has no default
    assert origin_of(load_config(BASE, "train.betas=[0.9, 0.95]"), "train.betas").kind == "chosen"
    with pytest.raises(ConfigError, match="unknown key"):
        origin_of(config, "train.lr")
    assert set(origins(config)) == set(all_keys())
    assert all(origins(config)[key] == origin_of(config, key) for key in all_keys())


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_say_where_every_value_is_from(name: str) -> None:
    """No value that is not said."""
    unsaid = [key for key, origin in origins(load_config(name)).items() if origin == NOT_SAID]
    assert not unsaid


def test_defaults_are_those_of_the_schema() -> None:
    """By key, as plain data; none for what has to be set."""
    assert defaults()["train.betas"] == [0.9, 0.999]
    assert defaults()["sampling.gen_prompts"] is None
    assert set(all_keys()) - set(defaults()) == {"model.path", "data.source"}
    assert set(values(load_config(BASE))) == set(all_keys())


# --- layers ---------------------------------------------------------------------------------------------------

ENTRIES = tomllib.loads(PARENT)["provenance"]


def provenance(*layers: Any) -> dict[str, str]:
    """Of parent.toml and these on top."""
    return dict(load_config("parent.toml", *layers).provenance)


@pytest.mark.parametrize(
    "layer",
    [
        "train.learning_rate=1e-5",
        "train.learning_rate=0.00001",
        'train.learning_rate="1e-5"',
        "train.seed=7",
        "model.chat_template_kwargs.a=1",
        "model.chat_template_kwargs={}",
        'data.source=[{source = "a", options = {n = 1}}]',
        'data.source=[{source = "a", weight = "off", options = {n = 1}}]',
        "train.weight_decay=0.1",
        "sampling.gen_prompts=off",
        "engine.slots=64",
        {"algorithm": {"clip_low": 0.1}},
        {"name": "another", "description": "text"},
    ],
)
def test_the_same_value_keeps_its_source(layer: Any, folder: Path) -> None:
    """However it is spelled; a default that is said again is still the default."""
    assert provenance(layer) == ENTRIES


@pytest.mark.parametrize(
    ("layer", "key", "said"),
    [
        ("train.learning_rate=2e-5", "train.learning_rate", "chosen: set by key=value"),
        ("engine.slots=65", "engine.slots", "chosen: set by key=value"),
        ("algorithm.clip_low=0.2", "algorithm.clip_low", "chosen: set by key=value"),  # the default, but not below
        ("algorithm.clip_low=off", "algorithm.clip_low", "chosen: set by key=value"),
        ("train.weight_decay=0", "train.weight_decay", "chosen: set by key=value"),
        ("model.chat_template_kwargs.a=2", "model.chat_template_kwargs", "chosen: set by key=value"),
        ("model.chat_template_kwargs.b=2", "model.chat_template_kwargs", "chosen: set by key=value"),
        ("model.chat_template_kwargs.a=true", "model.chat_template_kwargs", "chosen: set by key=value"),
        ("data.source=b.jsonl", "data.source", "chosen: set by key=value"),
        ('data.source=[{source = "a", options = {n = 2}}]', "data.source", "chosen: set by key=value"),
        ({"train.seed": 8}, "train.seed", "chosen: set in code"),
        ({"train": {"seed": 8}}, "train.seed", "chosen: set in code"),
        ("deep/over lay.toml", "train.seed", "chosen: set in over lay.toml"),
        ("deep/child.toml", "train.seed", "chosen: set in child.toml"),
    ],
)
def test_another_value_takes_the_source_away(layer: Any, key: str, said: str, folder: Path) -> None:
    """And only that key's."""
    (folder / "deep").mkdir()
    (folder / "deep/over lay.toml").write_text("[train]\nseed = 8\n")
    (folder / "deep/child.toml").write_text('extends = "../parent.toml"\n[train]\nseed = 8\n')
    assert provenance(layer) == ENTRIES | {key: said}
    if layer == "deep/child.toml":
        assert load_config(layer).provenance == ENTRIES | {key: said}


def test_an_entry_that_a_layer_brings_wins(folder: Path) -> None:
    """With a new value and with the same; and a later layer takes it away again. Without one it speaks of its own
    default, and wins where that stands: what a layer below has set is not what it means, unless it extends that."""
    entry = {"train.seed": "paper: page 3"}
    for seed in ({"train.seed": 8}, {"train.seed": 7}):
        assert provenance({**seed, "provenance": entry}) == ENTRIES | entry
    assert provenance({"provenance": entry}) == ENTRIES
    usual = {"train.max_grad_norm": "paper: page 4"}
    assert provenance({"provenance": usual}) == ENTRIES | usual
    (folder / "says.toml").write_text('extends = "parent.toml"\n[provenance]\n"train.seed" = "paper: page 3"\n')
    assert load_config("says.toml").provenance == ENTRIES | entry
    (folder / "child.toml").write_text(
        'extends = "parent.toml"\n[train]\nseed = 8\n[provenance]\n"train.seed" = "paper: page 3"\n'
    )
    assert load_config("child.toml").provenance == ENTRIES | entry
    assert load_config("child.toml", "train.seed=9").provenance == ENTRIES | {"train.seed": "chosen: set by key=value"}


def test_there_and_back_again(folder: Path) -> None:
    """Each layer is held against what lies below it, so the last that changed the value is named."""
    assert provenance("train.seed=8", {"train.seed": 7})["train.seed"] == "chosen: set in code"
    assert provenance("train.seed=8", {"train.seed": 8})["train.seed"] == "chosen: set by key=value"


def test_a_recipe_alone_is_marked_nowhere(folder: Path) -> None:
    """The first layer changes nothing: what it does not say is not said."""
    (folder / "first.toml").write_text('[model]\npath = "m"\n[data]\nsource = "d"\n[train]\nseed = 3\n')
    config = load_config("first.toml")
    assert config.provenance == {}
    assert origin_of(config, "train.seed") == NOT_SAID


def test_words_of_a_resume_are_layers_too(folder: Path) -> None:
    """On a config whose every default is filled in."""
    config = load_config("parent.toml")
    assert with_overrides(config, ()) == config
    assert with_overrides(config, ("train.seed=7", "engine.slots=64")) == config
    changed = with_overrides(config, ("train.seed=8", "engine.slots=8"))
    by_word = "chosen: set by key=value"
    assert changed.provenance == ENTRIES | {"train.seed": by_word, "engine.slots": by_word}


def test_a_circle_is_still_refused(folder: Path) -> None:
    """In every verb that reads a recipe."""
    (folder / "a.toml").write_text('extends = "b.toml"')
    (folder / "b.toml").write_text('extends = "a.toml"')
    for words in (
        ("show", "a.toml"),
        ("diff", "a.toml", "quickstart"),
        ("table", "a.toml"),
        ("copy", "a.toml", "c.toml"),
    ):
        assert "circle" in refused("recipe", *words)


@pytest.mark.parametrize(
    ("key", "one", "other", "alike"),
    [
        ("train.seed", 1, 1.0, True),
        ("train.learning_rate", "1e-6", 0.000001, True),
        ("train.max_grad_norm", "off", None, True),
        ("train.betas", [0.9, 1e-1], (0.9, 0.1), True),
        ("reward.extract", ["boxed"], ("boxed",), True),
        ("train.seed", 1, 2, False),
        ("train.seed", "nonsense", 1, False),
        ("model.chat_template_kwargs", {"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ("model.chat_template_kwargs", {"a": 1}, {"a": True}, False),
        ("train.seed", keys_module.MISSING, None, False),
    ],
)
def test_values_are_compared_by_what_they_mean(key: str, one: Any, other: Any, alike: bool) -> None:
    """TOML and code spell one value in several ways."""
    assert same(key, one, other) is alike
    assert same(key, other, one) is alike


# --- show -----------------------------------------------------------------------------------------------------


def test_show_gives_every_key_in_its_group() -> None:
    """Value, source, the first sentence of its meaning."""
    lines = ok("recipe", "show", "quickstart", "train.num_steps=5").splitlines()
    assert [line[1:].partition("]")[0] for line in lines if line.startswith("[")] == list(GROUPS)
    place = lines.index("train.num_steps = 5    # chosen: set by key=value")
    assert lines[place + 1] == "    Rollout steps."
    assert any(line.startswith("algorithm.clip_low = 0.2    # paper: section 4.1") for line in lines)
    place = next(i for i, line in enumerate(lines) if line.startswith("algorithm.advantage = "))
    assert lines[place + 1] == "    group: Eq. 9, (R - mean) / (std + eps) in each group."
    shown = {line.partition(" = ")[0] for line in lines if " = " in line and line[0] not in " ["}
    assert set(all_keys()) - {"provenance"} <= shown


def test_show_all_gives_whole_meanings() -> None:
    """And well-known names elsewhere."""
    short, whole = ok("recipe", "show", "quickstart"), ok("recipe", "show", "quickstart", "--all")
    assert "num_generations" in whole
    assert "num_generations" not in short
    assert "    AdamW's. Code: 0.1.\n" in whole
    assert "    AdamW's.\n" in short


def test_show_as_json() -> None:
    """A row for each key, with all that is known of its source."""
    rows = helpers.strict_json(ok("recipe", "show", "quickstart", "--json"))
    config = load_config("quickstart")
    assert [row["key"] for row in rows] == [key for key in all_keys() if key != "provenance"]
    for row in rows:
        assert list(row) == ["key", "value", "kind", "place", "repository", "commit", "meaning", "group"]
        assert row["value"] == values(config)[row["key"]]
        assert row["meaning"]
        assert row["group"] == group_of(row["key"])
    by_key = {row["key"]: row for row in rows}
    assert by_key["train.betas"]["commit"] == VERL
    assert by_key["train.betas"]["repository"] == "verl-project/verl"
    assert by_key["train.seed"]["commit"] is None


# --- diff -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", list(all_keys()))
def test_every_key_has_a_group(key: str) -> None:
    """Of the known ones, whichever way the loss is reduced."""
    assert group_of(key) in GROUPS
    assert group_of(key, microbatch=True) in GROUPS


@pytest.mark.parametrize(
    ("key", "group"),
    [
        ("model.dtype", "model"),
        ("model.device", "machine"),
        ("data.max_prompt_tokens", "data"),
        ("train.seed", "sampling"),
        ("algorithm.clip_high", "objective"),
        ("algorithm.kl.coef", "objective"),
        ("algorithm.reduction", "reduction"),
        ("algorithm.constant_tokens", "reduction"),
        ("train.learning_rate", "optimiser"),
        ("train.gradient_checkpointing", "machine"),
        ("train.logits_chunk_tokens", "machine"),
        ("engine.slots", "machine"),
        ("learner.kind", "machine"),
        ("eval.k", "evaluation"),
        ("checkpoint.every", "other"),
        ("trackers", "other"),
        ("name", "other"),
    ],
)
def test_groups_by_what_a_key_changes(key: str, group: str) -> None:
    """The cases that a prefix alone would not tell."""
    assert group_of(key) == group


def test_an_unknown_section_has_no_group() -> None:
    """So that a new one is thought of."""
    with pytest.raises(KeyError):
        group_of("fleet.kind")


@pytest.mark.parametrize("side", [0, 1])
def test_the_cut_belongs_to_the_reduction_where_it_changes_the_gradient(side: int, folder: Path) -> None:
    """When either of the two reduces by micro-batch, and only then."""
    one, other = load_config(BASE), load_config(BASE, "train.tokens_per_microbatch=512", "train.packing=padded")
    assert {d.group for d in differences(one, other)} == {"machine"}
    pair = [one, other]
    pair[side] = load_config(resolve(pair[side]), "algorithm.reduction=microbatch")
    found = differences(*pair)
    assert {d.key for d in found} == {"algorithm.reduction", "train.tokens_per_microbatch", "train.packing"}
    assert {d.group for d in found} == {"reduction"}
    both = [load_config(resolve(config), "algorithm.reduction=microbatch") for config in (one, other)]
    assert {d.group for d in differences(*both)} == {"reduction"}


def test_diff_names_values_and_sources_in_order(folder: Path) -> None:
    """Groups in their order; names, description and provenance are no differences."""
    text = 'extends = "quickstart"\nname = "mine"\ndescription = "x"\n'
    (folder / "mine.toml").write_text(
        text + "[train]\nseed = 3\nlearning_rate = 4e-6\n[eval]\nk = 4\n[engine]\nslots=8\n"
    )
    lines = ok("recipe", "diff", "quickstart", "mine.toml").splitlines()
    assert lines == [
        "[sampling]",
        "train.seed: 0 (chosen: dapo's default) -> 3 (chosen: set in mine.toml)",
        "[optimiser]",
        "train.learning_rate: 4e-05 (chosen: for a 135M model and few steps) -> 4e-06 (chosen: set in mine.toml)",
        "[machine]  speed and memory, not the update",
        "engine.slots: 64 (chosen: dapo's default) -> 8 (chosen: set in mine.toml)",
    ]
    rows = helpers.strict_json(ok("recipe", "diff", "quickstart", "mine.toml", "--json"))
    assert [row["key"] for row in rows] == ["train.seed", "train.learning_rate", "engine.slots"]
    assert rows[0]["group"] == "sampling"
    assert rows[0]["b"] == {
        "value": 3, "kind": "chosen", "place": "set in mine.toml", "repository": None, "commit": None
    }  # fmt: skip
    (folder / "renamed.toml").write_text(text)
    assert ok("recipe", "diff", "quickstart", "renamed.toml") == "quickstart and renamed.toml: no differences\n"
    assert ok("recipe", "diff", "quickstart", "renamed.toml", "--json") == "[]\n"


def test_diff_takes_runs(folder: Path) -> None:
    """By the settings that the run wrote down; a folder that is none is refused."""
    run, recipe = helpers.finished_run(), helpers.finished_run().parent / "recipe.toml"
    assert "no differences" in ok("recipe", "diff", run, recipe)
    assert "no differences" in ok("recipe", "diff", recipe, run)
    (folder / "empty").mkdir()
    assert "config.resolved.json" in refused("recipe", "diff", run, "empty")
    for text in ("[]", "{", "3"):
        (folder / "empty/config.resolved.json").write_text(text)
        assert "config.resolved.json" in refused("recipe", "diff", run, "empty")
    (folder / "quickstart").mkdir()  # a folder of a recipe's name hides no recipe
    assert "no differences" in ok("recipe", "diff", "quickstart", "quickstart")
    assert "config.resolved.json" in refused("recipe", "diff", "quickstart", "./quickstart")
    assert "can't be read" in refused("recipe", "diff", "quickstart", "x" * 5000 + ".toml")


def test_a_run_of_an_older_spelling_is_read() -> None:
    """Its sources are words for a person; they must not keep its settings from being read."""
    tree = resolve(load_config(BASE, "train.seed=4"))
    tree["provenance"] = {"train.seed": "code: verl 4f80e46", "train.gone": "paper: x", "eval.k": "paper: section 4.1"}
    config = from_run(tree)
    assert config.train.seed == 4
    assert set(config.provenance) == {"train.seed", "eval.k"}
    assert "verl 4f80e46" in config.provenance["train.seed"]
    assert from_tree(resolve(config)) == config


# --- copy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipe_names())
def test_a_copy_loads_to_the_same_values(name: str, folder: Path) -> None:
    """Without extends; every key there, each with its source as a comment."""
    ok("recipe", "copy", name, "mine.toml")
    copy, config = load_config("mine.toml"), load_config(name)
    assert values(copy) | {"provenance": {}} == values(config) | {"provenance": {}}
    text = (folder / "mine.toml").read_text(encoding="utf-8")
    assert "extends" not in tomllib.loads(text)
    assert set(keys_of(tomllib.loads(text))) == set(all_keys()) - {"provenance"}
    for key in set(all_keys()) - set(NOT_SETTINGS):
        assert f"# {origin_of(config, key)}\n" in text
    assert "no differences" in ok("recipe", "diff", name, "mine.toml")


def keys_of(tree: dict[str, Any]) -> list[str]:
    """Keys of a tree that stand in it."""
    return [key for key in all_keys() if keys_module.at(tree, key) is not keys_module.MISSING]


def test_a_copy_of_hostile_values_loads_to_them(folder: Path) -> None:
    """Quotes, line ends, comment signs, control characters, tables in tables; a source with a line end."""
    nasty = 'a"b\\c\n# d\t\x7f\x1b é \u2028 = [x]'
    config = load_config(
        {
            **BASE,
            "name": nasty,
            "description": nasty,
            "data.template": nasty,
            "data.source": [{"source": nasty, "options": {"k.e y": [1, {"deep": nasty}], "": 1e-300, "big": 10**18}}],
            "model.chat_template_kwargs": {nasty: {"x": [True, 2, 3.0]}},
            "reward.functions": ["grader", {"function": "/a.py:f", "weight": 1e-7}],
            "sampling.stop": [nasty, ""],
            "train.seed": 2**64 - 1,
            "provenance": {"train.seed": "chosen: a\nb # c"},
        }
    )
    text = as_toml(config, "a\nb")
    assert text.startswith("# a b\n")
    (folder / "nasty.toml").write_text(text, encoding="utf-8", newline="")
    assert values(load_config("nasty.toml")) | {"provenance": {}} == values(config) | {"provenance": {}}


@pytest.mark.parametrize("value", [{"a": None}, {"a": "\ud800"}, {"a": float("nan")}])
def test_what_toml_cannot_hold_is_refused(value: Any) -> None:
    """In one line, not by writing something else."""
    with pytest.raises(ConfigError, match="TOML"):
        as_toml(load_config(BASE, {"model.chat_template_kwargs": value}), "x")


def test_copy_never_writes_over(folder: Path) -> None:
    """Nor through a link that leads nowhere; and leaves nothing behind."""
    (folder / "link.toml").symlink_to("nowhere.toml")
    (folder / "dir.toml").mkdir()
    before = helpers.tree(folder)
    for name in ("parent.toml", "link.toml", "dir.toml"):
        assert "is there already" in refused("recipe", "copy", "quickstart", name)
    assert helpers.tree(folder) == before
    assert (folder / "parent.toml").read_text(encoding="utf-8") == PARENT
    assert "did you mean quickstart" in refused("recipe", "copy", "quickstrat", "new.toml")
    assert "no dashes" in refused("recipe", "copy", "quickstart", "--train.seed=1")
    assert helpers.tree(folder) == before


def test_show_begins_with_what_the_file_says_of_itself(tmp_path: Path) -> None:
    """Its first comment lines, then those of what it extends; the data's command is among them."""
    (tmp_path / "mine.toml").write_text("# Mine.\n#  Indented.\n\n# not this\nextends = 'dapo-table1-0'\n", "utf-8")
    for words in ((tmp_path / "mine.toml",), ("train.seed=1", tmp_path / "mine.toml")):
        code, out, _ = helpers.quiet_dapo("recipe", "show", *words)
        assert code == 0
        assert out.startswith(f"# {tmp_path / 'mine.toml'}\n#   Mine.\n#    Indented.\n\n# dapo-table1-0\n")
        assert "dapo data prepare BytedTsinghua-SIA/DAPO-Math-17k -o data/dapo-math-17k" in out.partition("[model]")[0]
        assert "not this" not in out
    code, out, _ = helpers.quiet_dapo("recipe", "show", "quickstart", "--json")
    assert helpers.strict_json(out)


def test_a_section_that_is_missing_is_asked_for_by_a_key() -> None:
    """`model=VALUE` would be refused."""
    code, _, err = helpers.quiet_dapo("config", "train.seed=1")
    assert code == 2
    assert "model.path is not set; give it in the recipe or as model.path=VALUE" in err


# --- released recipes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(released()["digests"]))
def test_a_released_recipe_never_changes(name: str) -> None:
    """It loads, and its values are those of its release. Mend the recipe, not released.json."""
    assert digest_at_release(load_config(name), released(), name) == released()["digests"][name]


def test_every_shipped_recipe_is_released() -> None:
    """A new one by make release-recipe NAME=...; the record has nothing else."""
    record = released()
    assert set(record["digests"]) == set(record["counted"]) == set(recipe_names())
    assert len(set(record["keys"])) == len(record["keys"])
    assert max(record["counted"].values()) == len(record["keys"])


def test_a_digest_is_of_values_alone() -> None:
    """Description and provenance change nothing, the name and any setting do; the order of keys does not."""
    config = load_config(BASE)
    same_values = load_config({**BASE, "description": "x", "provenance": {"train.seed": "chosen: x"}})
    assert recipe_digest(config) == recipe_digest(same_values)
    assert recipe_digest(config) == recipe_digest(config, reversed(list(all_keys())))
    others = [load_config(BASE, word) for word in ("name=x", "train.seed=1", "engine.slots=8", "sampling.stop=['a']")]
    assert len({recipe_digest(c) for c in (config, *others)}) == 5


def test_a_new_key_disturbs_no_released_digest() -> None:
    """A recipe is held to the keys it knew: here it knew none of algorithm's."""
    old = [key for key in all_keys() if not key.startswith("algorithm.")]
    config = load_config(BASE)
    record = release(
        {"keys": old, "defaults": {}, "counted": {}, "digests": {}}, "late", load_config(BASE, "name=late")
    )
    assert record["keys"][: len(old)] == old
    assert set(record["keys"]) == set(all_keys())
    early = {
        "keys": record["keys"],
        "defaults": record["defaults"],
        "counted": {**record["counted"], "early": len(old)},
        "digests": {**record["digests"], "early": recipe_digest(config, old)},
    }
    assert digest_at_release(config, early, "early") == early["digests"]["early"]
    for word in ("algorithm.clip_low=0.1", "algorithm.kl.estimator=k1"):  # as if these keys had come later
        changed = load_config(BASE, word)  # a released recipe that begins to use one is another recipe
        assert digest_at_release(changed, early, "early") != early["digests"]["early"]
        changed = load_config(BASE, word, "name=late")
        assert digest_at_release(changed, early, "late") != early["digests"]["late"]
    moved = early | {"defaults": {**early["defaults"], "algorithm.clip_low": 0.1}}  # its default was changed since
    assert digest_at_release(config, moved, "early") != early["digests"]["early"]


def test_a_changed_default_disturbs_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a recipe that relies on it, and of no recipe that says the value itself."""
    said = {**BASE, "train.weight_decay": 0.1}
    digests = [recipe_digest(load_config(layer)) for layer in (BASE, said)]
    assert digests[0] == digests[1]
    info = Config.model_fields["train"]
    monkeypatch.setattr(info, "default", info.default.model_copy(update={"weight_decay": 0.2}))
    Config.model_rebuild(force=True)
    try:
        changed = load_config(BASE)
        assert changed.train.weight_decay == 0.2
        assert recipe_digest(changed) != digests[0]
        assert recipe_digest(load_config(said)) == digests[0]
    finally:
        monkeypatch.undo()
        Config.model_rebuild(force=True)
    assert recipe_digest(load_config(BASE)) == digests[0]


def test_release_refuses_to_change_a_digest() -> None:
    """The same again is no change; a key that is gone is told."""
    record = released()
    name = next(iter(record["digests"]))
    config = load_config(name)
    assert release(record, name, config) == record
    with pytest.raises(ConfigError, match="is released"):
        release(record, name, load_config(name, "train.seed=99"))
    with pytest.raises(ConfigError, match=r"train\.gone"):
        recipe_digest(config, ["train.seed", "train.gone"])


# --- manifests and verify -------------------------------------------------------------------------------------


@functools.cache
def other_seed() -> Path:
    """A run of the same recipe file with another seed."""
    run = helpers.finished_run()
    target = helpers.folder_of_this_process() / "other"
    code, _, err = helpers.quiet_dapo("train", run.parent / "recipe.toml", "train.seed=1", "--output-dir", target)
    assert code == 0, err
    return target


def edited(target: Path, change: Callable[[dict[str, Any]], Any], file: str = "manifest.json") -> Path:
    """A copy of the finished run with another manifest."""
    run = helpers.copy_run(helpers.finished_run(), target)
    data = json.loads((run / file).read_text(encoding="utf-8"))
    change(data)
    (run / file).write_text(json.dumps(data), encoding="utf-8")
    return run


def verdicts(out: str) -> dict[str, str]:
    """Word behind the name of each part."""
    return {line.split()[0]: line.split()[1] for line in out.splitlines() if not line.startswith(" ")}


def test_a_run_writes_down_recipe_code_and_lock() -> None:
    """Beside the digests there were before."""
    run = helpers.finished_run()
    written = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["digests"]
    config = from_run(json.loads((run / "config.resolved.json").read_text(encoding="utf-8")))
    assert written["recipe"] == recipe_digest(config)
    assert written["code"] == manifest.code_digest()
    assert written["lock"] == manifest.lock_digest()
    assert {"training_data", "evaluation_data", "starting_weights", "model_config", "tokenizer", "template"} <= set(
        written
    )


def test_digests_of_code_and_lock_see_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of code or a recipe; a version; not the spelling of a name, the order, or any other file."""
    package = tmp_path / "dapo"
    (package / "run").mkdir(parents=True)
    (package / "run/manifest.py").write_text("x")
    (package / "a.toml").write_text("y")
    monkeypatch.setattr(manifest, "__file__", str(package / "run/manifest.py"))
    seen = [manifest.code_digest()]
    (package / "notes.json").write_text("z")
    assert manifest.code_digest() == seen[0]
    for name, text in (("a.toml", "z"), ("b.py", ""), ("run/manifest.py", "xx")):
        (package / name).write_text(text)
        seen.append(manifest.code_digest())
    assert len(set(seen)) == 4

    class Package:
        def __init__(self, name: str | None, version: str) -> None:
            self.metadata, self.version = {"Name": name}, version

    def lock(*packages: tuple[str | None, str]) -> str:
        monkeypatch.setattr("importlib.metadata.distributions", lambda: [Package(*p) for p in packages])
        return manifest.lock_digest()

    first = lock(("A_b", "1"), ("c", "2"))
    assert first == lock(("c", "2"), ("a-B", "1"), ("c", "2"), (None, "1"))
    assert first != lock(("c", "2"), ("a-b", "1.0"))


def test_two_runs_of_one_recipe_differ_in_the_seed_alone() -> None:
    """Exit 4, the key named; the run and itself are the same, exit 0."""
    one, other = helpers.finished_run(), other_seed()
    parts = ["recipe", "code", "lock", "data", "model", "tokenizer", "template", "functions"]
    assert verdicts(ok("recipe", "verify", one, one)) == dict.fromkeys(parts, "same")
    code, out, err = helpers.quiet_dapo("recipe", "verify", one, other)
    assert code == 4
    assert verdicts(out) == dict.fromkeys(parts, "same") | {"recipe": "differs"}
    assert "    train.seed: 0 -> 1" in out.splitlines()
    assert err.splitlines()[-1].endswith("did not use the same: recipe  [dapo explain E-CHECK]")
    code, out, _ = helpers.quiet_dapo("recipe", "verify", one, other, "--json")
    assert code == 4
    found = helpers.strict_json(out)
    assert found["same"] is False
    assert [part["name"] for part in found["parts"]] == parts
    assert found["parts"][0] == {"name": "recipe", "same": False, "how": ["train.seed: 0 -> 1"]}
    assert helpers.strict_json(ok("recipe", "verify", other, other, "--json"))["same"] is True


def spoil(**digests: str) -> Callable[[dict[str, Any]], Any]:
    """Other digests."""
    return lambda data: data["digests"].update(digests)


def both(*changes: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """One change after another."""
    return lambda data: [change(data) for change in changes]


def resumed(**entry: Any) -> Callable[[dict[str, Any]], Any]:
    """A resume, by default one that changed nothing."""

    def change(data: dict[str, Any]) -> None:
        first = {"step": 1, "changed": [], "code": data["code"], "versions": data["versions"]}
        digests = {name: data["digests"][name] for name in ("code", "lock")}
        data["resumed"] = [first | {"digests": digests} | entry]

    return change


@pytest.mark.parametrize(
    ("change", "part", "said"),
    [
        (both(spoil(code="0"), lambda d: d.update(code="abc")), "code", "-> abc"),
        (both(spoil(code="0"), lambda d: d.update(code=None)), "code", "-> not known"),
        (both(spoil(lock="0"), lambda d: d["versions"].update(numpy="0.1")), "lock", "-> 0.1"),
        (both(spoil(lock="0"), lambda d: d["versions"].pop("numpy")), "lock", "-> absent"),
        (spoil(lock="0"), "lock", "packages beside those"),
        (spoil(training_data="0"), "data", "training_data: 36 problems in both, but not the same"),
        (both(spoil(evaluation_data="0"), lambda d: d["described"].update(evaluation_data="5 problems")), "data",
         "evaluation_data: 4 problems -> 5 problems"),
        (spoil(starting_weights="0"), "model", "starting_weights: not the same"),
        (spoil(model_config="0"), "model", "model_config: not the same"),
        (spoil(tokenizer="0"), "tokenizer", "tokenizer"),
        (spoil(template="0"), "template", "template"),
        (spoil(recipe="0"), "recipe", "other values when the runs began"),
        (lambda d: d["digests"].pop("recipe"), "recipe", "recipe: not recorded in"),
        (lambda d: d["digests"].pop("code"), "code", "code: not recorded in"),
        (lambda d: d["digests"].update(lock=None), "lock", "lock: not recorded in"),
        (lambda d: d["digests"].pop("model_config"), "model", "model_config: not recorded in"),
    ],
)  # fmt: skip
def test_verify_says_what_differs_and_how(change: Any, part: str, said: str, tmp_path: Path) -> None:
    """One part each, in both directions."""
    run = edited(tmp_path / "run", change)
    code, out, err = helpers.quiet_dapo("recipe", "verify", helpers.finished_run(), run)
    assert code == 4
    assert [name for name, word in verdicts(out).items() if word != "same"] == [part]
    assert said in out
    assert err.splitlines()[-1].endswith(f": {part}  [dapo explain E-CHECK]")
    assert helpers.quiet_dapo("recipe", "verify", run, helpers.finished_run())[0] == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (resumed(changed=["train.num_steps: 2 -> 3"]), "at step 1: train.num_steps: 2 -> 3"),
        (resumed(digests={"code": "0"}, versions={}), "at step 1: other code; other lock"),
        (both(resumed(), lambda d: d["resumed"][0].pop("digests"), lambda d: d["resumed"][0].update(code="x")),
         "other code"),
        (both(resumed(), lambda d: d["resumed"][0].pop("digests"), lambda d: d["resumed"][0].update(versions={})),
         "other lock"),
    ],
)  # fmt: skip
def test_a_changed_resume_counts(change: Any, said: str, tmp_path: Path) -> None:
    """Even where a run is held against itself."""
    run = edited(tmp_path / "run", change)
    for other in (run, helpers.finished_run()):
        code, out, err = helpers.quiet_dapo("recipe", "verify", run, other)
        assert code == 4
        assert said in out
        assert err.splitlines()[-1].endswith(": resumed  [dapo explain E-CHECK]")


def test_a_resume_that_changed_nothing_counts_not(tmp_path: Path) -> None:
    """Another commit with the same code is the same code."""
    ok("recipe", "verify", edited(tmp_path / "run", resumed()), helpers.finished_run())
    ok("recipe", "verify", edited(tmp_path / "other", resumed(code="x")), helpers.finished_run())


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(digests=3),
        lambda d: d.update(digests=None, versions=[], described="x"),
        lambda d: d.update(resumed={}, described=3, versions=3, code=3),
        lambda d: d.update(resumed=[3, {"changed": 4}]),
    ],
)
def test_a_mangled_manifest_is_no_traceback(change: Any, tmp_path: Path) -> None:
    """What is not there was not recorded."""
    code, _, err = helpers.quiet_dapo("recipe", "verify", edited(tmp_path / "run", change), helpers.finished_run())
    assert code in (0, 4)
    assert "Traceback" not in err


@pytest.mark.parametrize("file", ["manifest.json", "config.resolved.json"])
@pytest.mark.parametrize("text", ["[]", "{", "3", None])
def test_a_run_without_its_files_is_refused(file: str, text: str | None, tmp_path: Path) -> None:
    """In one line, with the file's name."""
    run = helpers.copy_run(helpers.finished_run(), tmp_path / "run")
    (run / file).unlink()
    if text is not None:
        (run / file).write_text(text)
    assert file in refused("recipe", "verify", run, helpers.finished_run())


def test_an_old_run_goes_on(tmp_path: Path) -> None:
    """Without the new digests, with sources in an older spelling; what only speaks of settings is no change."""

    def age(data: dict[str, Any]) -> None:
        for name in ("recipe", "code", "lock"):
            del data["digests"][name]

    run = edited(tmp_path / "run", age)
    tree = json.loads((run / "config.resolved.json").read_text(encoding="utf-8"))
    tree |= {"description": "of old", "provenance": {"train.seed": "code: verl 4f80e46"}}
    (run / "config.resolved.json").write_text(json.dumps(tree))
    code, _, err = helpers.quiet_dapo("train", "--resume", run, "train.num_steps=3", "description=new")
    assert code == 0, err
    entry = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["resumed"][-1]
    assert entry["changed"] == ["train.num_steps: 2 -> 3"]
    assert set(entry["digests"]) == {"recipe", "code", "lock"}
    config = from_run(json.loads((run / "config.resolved.json").read_text(encoding="utf-8")))
    assert config.provenance["train.num_steps"] == "chosen: set by key=value"
    code, out, _ = helpers.quiet_dapo("recipe", "verify", run, helpers.finished_run())
    assert code == 4
    assert "code: not recorded" in out
    assert "train.num_steps: 2 -> 3" in out


def test_changes_of_settings_leave_out_what_speaks_of_them() -> None:
    """At the top; a table's own key of that name counts."""
    before = {"description": "a", "provenance": {"x": "y"}, "data": {"description": 1}, "train": {"seed": 1}}
    after = {"description": "b", "provenance": {}, "data": {"description": 2}, "train": {"seed": 2}}
    assert manifest.config_changes(before, after) == ["data.description: 1 -> 2", "train.seed: 1 -> 2"]
