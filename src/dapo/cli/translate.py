"""dapo config --from-verl and --from-trl: the recipe, and what became of every key."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from dapo.config.foreign import Refused, Translation, translate_trl, translate_verl
from dapo.errors import ConfigError
from dapo.files import write_text
from dapo.printable import printable

HEADINGS = {
    "no_counterpart": "no counterpart in dapo",
    "different": "translated, and dapo behaves differently",
    "unknown": "not known",
}


def translate(words: Sequence[str], system: str, output: str | None, as_json: bool) -> None:
    """Prints or writes the recipe.

    Args:
        words: files and key=value words of the other system.
        system: "verl" or "trl".
        output: a .toml file, or None for stdout.
        as_json: one object on stdout in place of TOML and lists.

    Raises:
        ConfigError: nothing was written; the lists, where there are any, went to stderr.
    """
    if not words:
        raise ConfigError(f"name a configuration of {system}: a file or key=value words")
    if output is not None and not output.endswith(".toml"):
        raise ConfigError(f"--output {output}: a recipe's name ends in .toml")
    try:
        translation = translate_verl(words) if system == "verl" else translate_trl(words)
    except Refused as refusal:
        if refusal.translation is not None:
            _lists(refusal.translation)
        raise
    if output is not None:
        _write(Path(output), translation.toml())
    if as_json:
        click.echo(json.dumps(_object(translation), indent=2, ensure_ascii=False))
        return
    if output is None:
        click.echo(translation.toml(), nl=False)
    _lists(translation)


def _write(path: Path, text: str) -> None:
    if os.path.lexists(path):
        raise ConfigError(f"--output {path}: is there already; name another file")
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"--output {path}: can't be written: {error.strerror or error}") from None


def _object(translation: Translation) -> dict[str, object]:
    counts = {bucket: len(rows) for bucket, rows in translation.buckets.items()}
    return {
        "recipe": translation.recipe,
        **translation.buckets,
        "notes": translation.notes,
        "counts": {**counts, "read": translation.keys_read},
    }


def _lists(translation: Translation) -> None:
    for bucket, heading in HEADINGS.items():
        rows = translation.buckets[bucket]
        if rows:
            _say(f"{heading} ({len(rows)}):")
        for row in rows:
            _say(f"  {row['key']} = {_short(row['value'])}\n      {row['how']}")
    machine = translation.buckets["machine"]
    if machine:
        _say(f"about the machine, left out ({len(machine)}): {', '.join(row['key'] for row in machine)}")
    if translation.notes:
        _say("notes:")
    for note in translation.notes:
        _say(f"  {note}")
    counts = {bucket: len(rows) for bucket, rows in translation.buckets.items()}
    _say(
        f"{translation.keys_read} keys read: {counts['translated']} translated, {counts['different']} with a "
        f"difference, {counts['no_counterpart']} without counterpart, {counts['machine']} of the machine, "
        f"{counts['unknown']} not known"
    )


def _say(text: str) -> None:
    click.echo("\n".join(printable(line) for line in text.split("\n")), err=True)


def _short(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())
    return text if len(text) <= 80 else text[:77] + "..."
