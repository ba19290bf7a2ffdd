"""Which command of a script is the training, and its key=value words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dapo.config.foreign.report import Unresolved
from dapo.config.foreign.shell_expand import Command, Script, Word

SETTING = re.compile(r"(\+{0,2})([A-Za-z_][\w-]*(?:\.[\w@/-]+)+)=(.*)", re.DOTALL)
TRAINER = re.compile(r"(?:.*[./])?(?:verl|main_\w+)(?:[./].*)?", re.DOTALL)
LAUNCHER = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|ray|srun|uv)")
_OTHER = (
    "echo printf tee grep egrep sed awk cat head tail sort jq cut tr xargs git curl wget mkdir cp mv rm ln ls touch "
    "tar rsync scp cd pushd popd test [ [[ : true false set shopt trap exit return sleep wait kill wandb pip logger "
    "source . read unset let mapfile readarray getopts"
)
OTHER = frozenset(_OTHER.split())


def training(script: Script) -> tuple[Command | None, list[str]]:
    """The last command that starts a training and has key=value words, and notes about those passed over."""
    having = [command for command in script.commands if any(SETTING.fullmatch(word.text) for word in command.words)]
    ranks = [_rank(command) for command in having]
    best = max(ranks, default=0)
    alike = [command for command, rank in zip(having, ranks, strict=True) if rank == best]
    chosen = alike[-1] if best else None
    notes = []
    if chosen is not None and len(alike) > 1:
        lines = ", ".join(str(command.line) for command in alike[:-1])
        notes.append(
            f"{len(alike)} training commands: the last, of line {chosen.line}, is taken; not read: line {lines}"
        )
    for command, rank in zip(having, ranks, strict=True):
        if chosen is not None and rank < best:
            notes.append(f"line {command.line}: words of another command ({command.words[0].text[:40]}) were not read")
    if chosen is not None:
        notes += _untold(chosen)
    return chosen, notes


def settings(script: Script) -> Iterator[tuple[str, str | Unresolved]]:
    """(key, value) of every dotted key=value word of the training; a leading + or ++ is left out."""
    chosen, _ = training(script)
    for word in chosen.words if chosen else ():
        match = SETTING.fullmatch(word.text)
        if match:
            yield match[2], Word(match[3], word.missing).value()


def _rank(command: Command) -> int:
    """How much a command looks like a training: 0 not at all, 3 by verl's name or a main_... module."""
    if command.words[0].text in OTHER:
        return 0
    plain = [word.text for word in command.words if not SETTING.fullmatch(word.text)]
    if any(TRAINER.fullmatch(text) for text in plain):
        return 3
    return 2 if any(LAUNCHER.fullmatch(text) for text in plain) else 1


def _untold(command: Command) -> Iterator[str]:
    """Words among the settings that can't be told, and so may be settings."""
    places = [place for place, word in enumerate(command.words) if SETTING.fullmatch(word.text)]
    places += [place + 1 for place, word in enumerate(command.words) if TRAINER.fullmatch(word.text)]
    for word in command.words[min(places, default=0) :]:
        own = re.fullmatch(r"\"?\$(?:[@*]|\{[@*]\})\"?", word.text)
        if word.missing and not own and not SETTING.fullmatch(word.text) and not word.text.startswith("-"):
            yield (
                f"line {command.line}: the word {word.text[:60]} can't be told ({', '.join(word.missing)[:200]}), and "
                "no key in it was read; give its keys as words after the file"
            )
