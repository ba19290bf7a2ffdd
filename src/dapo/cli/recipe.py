"""dapo recipe: the shipped recipes, where their values come from, and in what two of them, or two runs, differ.

Loads no torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from dapo.cli.words import SETTINGS, WORDS, config_of, refuse_dashes
from dapo.config.explain import explain
from dapo.config.groups import GROUPS, MEANING, Difference, cut_counts, differences, group_of
from dapo.config.json_schema import SCHEMA_FILE
from dapo.config.keys import values
from dapo.config.load import from_run, load_config, recipe_comments, recipe_names
from dapo.config.origins import Origin, origin_of, origins
from dapo.config.schema import Config
from dapo.config.tables import recipe_table
from dapo.config.write import as_toml, toml_lines, toml_value
from dapo.errors import CheckFailed, ConfigError, UserError
from dapo.files import write_text
from dapo.printable import printable

# A full stop ends a sentence where no abbreviation does.
_END = re.compile(r"(?<!\bEq)(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)\.\s")
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group()
def recipe() -> None:
    """List, show, compare and copy recipes; hold two runs against each other."""


@recipe.command("list")
def recipe_list() -> None:
    """Name and description of every shipped recipe."""
    for name in recipe_names():
        click.echo(f"{name:24s} {load_config(name).description}")


@recipe.command("show", context_settings=SETTINGS)
@WORDS
@_AS_JSON
@click.option("--all", "whole", is_flag=True, help="Whole meanings, and the name of each key in verl and TRL.")
def recipe_show(words: tuple[str, ...], as_json: bool, whole: bool) -> None:
    """What a recipe's file says of itself; every value, with where it comes from and what it means."""
    rows = _rows(config_of(words))
    if as_json:
        kept = ("key", "value", "kind", "place", "repository", "commit", "meaning", "group")
        _print_json([{name: row[name] for name in kept} for row in rows])
        return
    named = [word for word in words if "=" not in word]
    for name, lines in recipe_comments(named[0]) if named else ():
        _say("\n".join([f"# {name}", *(f"#   {line}".rstrip() for line in lines), ""]))
    for group in GROUPS:
        own = [row for row in rows if row["group"] == group]
        _say(_heading(group))
        for row in own:
            _say(f"{row['key']} = {row['text']}    # {row['origin']}")
            _say(f"    {row['meaning'] if whole else _first_sentence(row['meaning'])}")
            if whole and row["elsewhere"]:
                _say(f"    elsewhere: {row['elsewhere']}")
        _say("")


def _rows(config: Config) -> list[dict[str, Any]]:
    """A row for each key, provenance aside."""
    plain, sources, microbatch = values(config), origins(config), cut_counts(config)
    return [
        {"key": key, "value": plain[key], **_source(sources[key]), "meaning": meaning}
        | {"group": group_of(key, microbatch=microbatch), "text": toml_lines(value)}
        | {"origin": sources[key], "elsewhere": elsewhere}
        for key, value, meaning, elsewhere in explain(config)
        if key != "provenance"
    ]


def _source(origin: Origin) -> dict[str, str | None]:
    return {
        "kind": origin.kind,
        "place": origin.place,
        "repository": origin.repository,
        "commit": origin.commit,
    }


def _first_sentence(text: str) -> str:
    end = _END.search(text)
    return text[: end.start() + 1] if end else text


def _heading(group: str) -> str:
    return f"[{group}]" + (f"  {MEANING[group]}" if group in MEANING else "")


@recipe.command("diff", context_settings=SETTINGS)
@click.argument("one", metavar="RECIPE|RUN")
@click.argument("other", metavar="RECIPE|RUN")
@_AS_JSON
def recipe_diff(one: str, other: str, as_json: bool) -> None:
    """In what two recipes, .toml files or runs differ, grouped by what it changes."""
    before, after = _side(one), _side(other)
    found = differences(before, after)
    if as_json:
        _print_json([_difference(difference, before, after) for difference in found])
        return
    if not found:
        _say(f"{one} and {other}: no differences")
    for group in GROUPS:
        own = [difference for difference in found if difference.group == group]
        if own:
            _say(_heading(group))
        for d in own:
            old = f"{toml_value(d.one)} ({origin_of(before, d.key)})"
            _say(f"{d.key}: {old} -> {toml_value(d.other)} ({origin_of(after, d.key)})")


def _difference(d: Difference, before: Config, after: Config) -> dict[str, Any]:
    return {
        "key": d.key,
        "group": d.group,
        "a": {"value": d.one, **_source(origin_of(before, d.key))},
        "b": {"value": d.other, **_source(origin_of(after, d.key))},
    }


def _side(word: str) -> Config:
    """The configuration of a recipe, a .toml file or a run directory. Raises UserError.

    A shipped recipe's name means the recipe, also where a folder is called so (./NAME is the folder).
    """
    refuse_dashes([word])
    folder = Path(word)
    if word in recipe_names() or not _is_folder(folder):
        if "=" in word and not word.endswith(".toml"):
            raise ConfigError(f"{word}: name a recipe, a .toml file or a run directory here, no key=value word")
        return load_config(word)
    from dapo.run.directory import RunDirectory

    run = RunDirectory.open(word)
    tree = run.read_json("config.resolved.json")
    if not isinstance(tree, dict):
        raise UserError(f"{folder / 'config.resolved.json'}: not the configuration of a run; put it back")
    return from_run(tree)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False  # too long for a name, or not one


@recipe.command("copy", context_settings=SETTINGS)
@click.argument("name", metavar="RECIPE|RUN")
@click.argument("file", metavar="FILE.toml")
def recipe_copy(name: str, file: str) -> None:
    """Write a recipe, or that of a run, to a new file, every key with its source, to edit and train by."""
    refuse_dashes([name, file])
    target = Path(file)
    if target.suffix != ".toml":
        raise ConfigError(f"{file}: a recipe's file ends in .toml")
    text = as_toml(_side(name), f"A copy of {name}. Comments say where each value was from in it.")
    text = f"#:schema ./{SCHEMA_FILE}\n{text}"  # what editors check it by, where it lies beside the file
    if not target.parent.is_dir():
        raise UserError(f"{file}: no such folder {target.parent}")
    if os.path.lexists(target):
        raise UserError(f"{file}: is there already; name another file")
    try:
        write_text(target, text)
    except OSError as error:
        raise UserError(f"{file}: can't be written: {error.strerror or error}") from None
    _say(f"{file}: {len(text.splitlines())} lines; train by it with dapo train {file}")
    if not os.path.lexists(schema := target.parent / SCHEMA_FILE):
        _say(f"for an editor that completes and checks it: dapo config --schema -o {schema}")


@recipe.command("table", context_settings=SETTINGS)
@click.argument("names", nargs=-1, metavar="[RECIPE]...")
def recipe_table_(names: tuple[str, ...]) -> None:
    """Recipes side by side as a Markdown table; without names all shipped ones."""
    _say(recipe_table({name: _side(name) for name in names or recipe_names()}).rstrip("\n"))


@recipe.command("verify", context_settings=SETTINGS)
@click.argument("one", metavar="RUN")
@click.argument("other", metavar="RUN")
@_AS_JSON
def recipe_verify(one: str, other: str, as_json: bool) -> None:
    """Whether two runs used the same recipe, code, packages, data and model.

    Exit code 4 when anything differs or was not recorded.
    """
    refuse_dashes([one, other])
    from dapo.run.directory import RunDirectory
    from dapo.run.verify import verify

    found = verify(RunDirectory.open(one), RunDirectory.open(other))
    if as_json:
        parts = [{"name": part.name, "same": part.same, "how": list(part.how)} for part in found.parts]
        _print_json({"same": found.same, "runs": [one, other], "parts": parts, "resumed": list(found.resumed)})
    else:
        for part in found.parts:
            _say(f"{part.name:10s} {'same' if part.same else 'differs'}" + _indented(part.how))
        for line in found.resumed:
            _say(f"{'resumed':10s} {line}")
    if not found.same:
        failed = [part.name for part in found.parts if not part.same] + ["resumed"] * bool(found.resumed)
        raise CheckFailed(f"{one} and {other} did not use the same: {', '.join(failed)}")


def _indented(lines: Iterable[str]) -> str:
    return "".join(f"\n    {line}" for line in lines)


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def _say(text: str) -> None:
    click.echo(printable(text))
