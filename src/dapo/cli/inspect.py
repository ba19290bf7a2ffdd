"""Verbs that look at things: config, doctor. The first loads no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from dapo.cli.translate import translate
from dapo.cli.words import SETTINGS, WORDS, config_of
from dapo.config import explain, resolve
from dapo.config.write import toml_value
from dapo.errors import CheckFailed, ConfigError
from dapo.files import write_text


@click.command(context_settings=SETTINGS)
@WORDS
@click.option("--explain", "with_meaning", is_flag=True, help="Meaning of each key, and its name in verl and TRL.")
@click.option("--schema", is_flag=True, help="The JSON Schema of a recipe file, for editors.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--from-verl", is_flag=True, help="Translate verl's .sh and .yaml files and key=value words.")
@click.option("--from-trl", is_flag=True, help="Translate TRL's .yaml and .py files and key=value words.")
@click.option("-o", "--output", metavar="FILE", help="Of a translation or the schema: write it there, not to stdout.")
def config(
    words: tuple[str, ...],
    with_meaning: bool,
    schema: bool,
    as_json: bool,
    from_verl: bool,
    from_trl: bool,
    output: str | None,
) -> None:
    """Print the resolved configuration: every key with its value.

    \b
    With --from-verl or --from-trl: the recipe that another system's configuration makes, on stdout, and on
    stderr what has no counterpart and what behaves differently.
        dapo config --from-verl run_dapo.sh train.num_steps=200 -o mine.toml
    With --schema: what editors complete and check recipe files by; a recipe's first line names the file.
        dapo config --schema -o dapo.schema.json
    """
    if from_verl or from_trl:
        if (from_verl and from_trl) or with_meaning or schema:
            raise ConfigError("--from-verl, --from-trl, --explain and --schema exclude each other; give one of them")
        translate(words, "verl" if from_verl else "trl", output, as_json)
        return
    if schema:
        if words or with_meaning:
            raise ConfigError(f"--schema is of every recipe; leave out {words[0] if words else '--explain'}")
        _schema(output)
        return
    if output is not None:
        raise ConfigError("--output goes with --schema, --from-verl or --from-trl")
    resolved = config_of(words) if words else None
    if as_json:
        click.echo(json.dumps(resolve(resolved or config_of(words)), indent=2, ensure_ascii=False))
        return
    if resolved is None and not with_meaning:
        config_of(words)
    sources = resolved.provenance if resolved else {}
    for key, value, meaning, elsewhere in explain(resolved):
        if key == "provenance":
            continue
        click.echo(f"{key} = {toml_value(value) if _has_value(value) else '(must be set)'}")
        if with_meaning:
            click.echo(f"    {meaning}" + (f"\n    elsewhere: {elsewhere}" if elsewhere else ""))
            if key in sources:
                click.echo(f"    from: {sources[key]}")


def _schema(output: str | None) -> None:
    """Prints or writes it; an older schema of ours is replaced, since it is made again after every change of keys."""
    from dapo.config.json_schema import TITLE, recipe_schema

    text = json.dumps(recipe_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    path = Path(output)
    if path.suffix != ".json":
        raise ConfigError(f"--output {output}: a schema's name ends in .json")
    try:
        if os.path.lexists(path) and f'"title": "{TITLE}"' not in path.read_text(encoding="utf-8"):
            raise ConfigError(f"--output {output}: is there already, and no schema of dapo; name another file")
        write_text(path, text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is there already, and no schema of dapo"
        raise ConfigError(f"--output {output}: can't be written: {reason or error}") from None
    click.echo(f'{output}: written; a recipe beside it begins with the line "#:schema ./{path.name}"')


def _has_value(value: Any) -> bool:
    return type(value).__name__ != "PydanticUndefinedType"


@click.command(context_settings=SETTINGS)
@WORDS
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(words: tuple[str, ...], as_json: bool) -> None:
    """Check what can be checked before training; without a recipe, print the environment.

    Exit code 4 when a check fails.
    """
    from dapo import doctor as rooms

    if not words:
        report = rooms.environment()
        if as_json:
            click.echo(json.dumps(report, indent=2))
        else:
            for key, value in report.items():
                click.echo(f"{key}: {value}")
        return
    checks = []
    for check in rooms.checks(config_of(words)):
        checks.append(check)
        if not as_json:
            click.echo(f"{'pass' if check.passed else 'FAIL'}  {check.name}: {check.found}")
            if not check.passed:
                click.echo(f"      mend: {check.mend}")
    if as_json:
        rows = [{"name": c.name, "passed": c.passed, "found": c.found, "mend": c.mend} for c in checks]
        click.echo(json.dumps(rows, indent=2))
    failed = [check.name for check in checks if not check.passed]
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")
