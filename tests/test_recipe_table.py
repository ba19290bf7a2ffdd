"""Recipes side by side: the table, and the page docs/recipes.md that must not go stale."""

from __future__ import annotations

from pathlib import Path

import pytest

import helpers_run as helpers
from dapo.config import load_config, recipe_names
from dapo.config.keys import NOT_SETTINGS, all_keys
from dapo.config.tables import BEGIN, END, WIDTH, page_with_table, recipe_table, short_value
from dapo.errors import ConfigError
from dapo.generated import rewrite

PAGE = Path(__file__).parents[1] / "docs/recipes.md"
BASE = {"model.path": "m", "data.source": "d"}


def test_the_page_is_what_the_command_generates() -> None:
    """If not: make recipe-docs."""
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_table(page) == page
    code, out, err = helpers.quiet_dapo("recipe", "table")
    assert code == 0, err
    assert out in page
    for name in recipe_names():
        assert f"- `{name}`: {load_config(name).description}" in page


def test_writing_the_page_again(tmp_path: Path) -> None:
    """Only what stands between the markers, twice the same; a page without them is refused."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nof yesterday\n{END}\nafter\n", encoding="utf-8")
    rewrite(page, page_with_table)
    once = page.read_text(encoding="utf-8")
    assert once.startswith(f"before\n{BEGIN}\n")
    assert once.endswith(f"{END}\nafter\n")
    assert "of yesterday" not in once
    rewrite(page, page_with_table)
    assert page.read_text(encoding="utf-8") == once
    for text in ("nothing", f"{END} {BEGIN}", BEGIN):
        page.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="recipe-docs"):
            rewrite(page, page_with_table)
    with pytest.raises(ConfigError, match=r"no\.md"):
        rewrite(tmp_path / "no.md", page_with_table)


def rows(table: str) -> dict[str, list[str]]:
    """Cells by knob."""
    found = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            knob, *cells = line[2:-2].split(" | ")
            found[knob.strip("`")] = cells
    return found


def test_a_row_for_each_knob_that_says_something() -> None:
    """Set away from its default anywhere, or different; all others below, each once."""
    one = load_config(BASE)
    other = load_config(BASE, "train.seed=3", "name=x", "description=y")
    table = recipe_table({"one": one, "other": other})
    assert rows(table) == {
        "model.path": ['`"m"`', '`"m"`'],
        "data.source": ['`"d"`', '`"d"`'],
        "train.seed": ["`0`", "`3`"],
    }
    assert table.splitlines()[0] == "|  | one | other |"
    rest = table.partition("The same everywhere")[2]
    for key in set(all_keys()) - set(NOT_SETTINGS):
        assert (f"`{key} = " in rest) is (key not in rows(table)), key
        assert rest.count(f"`{key} = ") <= 1
    assert all(f"`{key}" not in table for key in ("name`", "description`", "provenance`", "schema`"))


def test_the_cut_stands_with_the_reduction_where_it_counts() -> None:
    """As in recipe diff."""
    words = ("algorithm.reduction=microbatch", "train.packing=padded")
    lines = recipe_table({"a": load_config(BASE, *words)}).splitlines()
    assert lines.index('| `train.packing` | `"padded"` |') == lines.index("| **reduction** |  |") + 2


def test_values_are_short() -> None:
    """A list of tables by its sources, long texts cut, a bar and a backtick harmless."""
    assert short_value(None) == '"off"'
    assert short_value([{"source": "a", "options": {"n": [1] * 99}}, {"source": "b"}]) == "2: a, b"
    assert short_value([{"function": "a.py:f", "weight": 1.0}]) == "1: a.py:f"
    assert len(short_value("x" * 999)) == WIDTH
    assert short_value("a\nb\x1b").isprintable()
    table = recipe_table({"a|b": load_config(BASE, {"data.template": "{{ x | y }} `"})})
    line = next(line for line in table.splitlines() if "data.template" in line)
    assert line == '| `data.template` | `"{{ x \\| y }} \'"` |'
    assert "| a\\|b |" in table


def test_the_command_takes_recipes_files_and_runs(tmp_path: Path) -> None:
    """A column for each, in order."""
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "quickstart"\n[train]\nseed = 5\n')
    code, out, err = helpers.quiet_dapo("recipe", "table", "quickstart", mine, helpers.finished_run())
    assert code == 0, err
    assert rows(out)["train.seed"] == ["`0`", "`5`", "`0`"]
    with pytest.raises(ConfigError, match="at least one"):
        recipe_table({})
