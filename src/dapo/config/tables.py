"""Recipes side by side as Markdown, and the page docs/recipes.md that is made of it.

python -m dapo.config.tables docs/recipes.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dapo.config.groups import GROUPS, cut_counts, group_of
from dapo.config.keys import NOT_SETTINGS, defaults, values
from dapo.config.load import load_config, recipe_names
from dapo.config.schema import Config
from dapo.config.write import toml_value
from dapo.errors import ConfigError
from dapo.generated import main, with_part
from dapo.printable import one_line

BEGIN = "<!-- made by `make recipe-docs` from the shipped recipes: begin -->"
END = "<!-- made by `make recipe-docs`: end -->"
WIDTH = 48  # of a value in a table


def short_value(value: Any) -> str:
    """A plain value on one line of at most WIDTH characters; lists of tables by their sources."""
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        names = [str(part.get("source", part.get("function", "?"))) for part in value]
        return one_line(f"{len(value)}: " + ", ".join(names), WIDTH)
    return one_line(toml_value(value), WIDTH)


def recipe_table(recipes: Mapping[str, Config]) -> str:
    """A Markdown table with a row for each knob and a column for each recipe, and under it what is the same in all.

    A knob has a row when recipes differ in it or one sets it away from its default.
    """
    if not recipes:
        raise ConfigError("name at least one recipe")
    columns, microbatch = [values(config) for config in recipes.values()], cut_counts(*recipes.values())
    knobs = [key for key in columns[0] if key not in NOT_SETTINGS]
    plain = {key for key in knobs if all(key in defaults() and c[key] == defaults()[key] for c in columns)}
    lines = [_row(["", *(_escaped(name) for name in recipes)]), _row(["---"] * (1 + len(recipes)))]
    for group in GROUPS:
        own = [key for key in knobs if key not in plain and group_of(key, microbatch=microbatch) == group]
        if own:
            lines.append(_row([f"**{group}**", *([""] * len(recipes))]))
        lines += [_row([f"`{key}`", *(_cell(column[key]) for column in columns)]) for key in own]
    same = [f"- {group}: {_settings(keys, columns[0])}" for group, keys in _by_group(knobs, plain, microbatch)]
    return "\n".join([*lines, "", "The same everywhere, at their defaults:", "", *same]) + "\n"


def _by_group(knobs: list[str], plain: set[str], microbatch: bool) -> list[tuple[str, list[str]]]:
    found = [(g, [k for k in knobs if k in plain and group_of(k, microbatch=microbatch) == g]) for g in GROUPS]
    return [(group, keys) for group, keys in found if keys]


def _settings(keys: list[str], column: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key} = {_no_ticks(short_value(column[key]))}`" for key in keys)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    return f"`{_escaped(short_value(value))}`"


def _escaped(text: str) -> str:
    """Fit for a cell: a bar would end it."""
    return _no_ticks(text).replace("|", "\\|")


def _no_ticks(text: str) -> str:
    """Fit for code, which a backtick would end."""
    return text.replace("`", "'")


def page_with_table(page: str) -> str:
    """The page with the table of all shipped recipes between the two markers. Raises ConfigError without them."""
    listed = {name: load_config(name) for name in recipe_names()}
    about = "".join(f"- `{name}`: {config.description}\n" for name, config in listed.items())
    return with_part(page, BEGIN, END, f"{about}\n{recipe_table(listed)}")


if __name__ == "__main__":
    main(page_with_table, "docs/recipes.md")
