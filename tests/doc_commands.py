"""Commands as pages show them, held against what exists: options, recipes, keys, scripts, targets. Nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from dapo.cli import group
from dapo.config.load import load_config, parse_override, recipe_names
from dapo.config.sets import HOLDOUT
from dapo.data.named import is_named
from dapo.errors import DapoError

ROOT = Path(__file__).parents[1]
OPERATORS = ("&&", "||", ";", "|", ">", ">>", "<", "2>", "2>&1", "&")
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
KEY_VALUE = re.compile(r"[a-z_]+(?:\.[a-z_]+)*=")
PLACEHOLDER = re.compile(r"[a-z_.]*[A-Z]\w*=")  # checks.NAME=warn, KEY=VALUE
TAKES_RECIPE = ("train", "doctor", "plan", "config")  # as their first words
SCRIPT = re.compile(r"(?:benchmarks|deploy)/[\w./-]+\.(?:py|sh)")


def faults(line: str, files: Path | None = None, *, named: bool = False) -> list[str]:
    """What is wrong with a line of a shell: commands, and options that its comment names.

    files: a folder with the recipes that the page has written so far. named: it is only spoken of, so that it may
    leave out what it would need.
    """
    try:
        words = shlex.split(line, comments=True)
        comment = _comment(line)
    except ValueError as error:
        return [f"{line}: {error}"]
    found, command = list[str](), None
    for simple in _simple(words):
        command, wrong = _checked(simple, files, named)
        found += [f"{line}: {fault}" for fault in wrong]
    if comment and command is not None:
        known = _options(command)
        found += [
            f"{line}: its comment names {option}, which is not there"
            for option in OPTION.findall(comment)
            if option not in known
        ]
    return found


def inline(text: str) -> Iterator[str]:
    """Commands within the prose: `dapo ...` in backticks."""
    prose = re.sub(r"^(`{3,}).*?^\\1", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose):
        words = re.sub(r"\[(--?[a-z][^\]]*)\]", r"\1", " ".join(span.split()))  # [--option] may be left out
        if re.match(r"(?:\.venv/bin/)?dapo [a-z]", words):
            yield words


def _comment(line: str) -> str:
    """What a line's comment says; a # within quotes begins none."""
    for place, letter in enumerate(line):
        if letter == "#" and (place == 0 or line[place - 1].isspace()):
            try:
                shlex.split(line[:place])
            except ValueError:
                continue
            return line[place:]
    return ""


def _simple(words: Sequence[str]) -> Iterator[list[str]]:
    """Commands between operators; where output goes is none."""
    command: list[str] = []
    for word in words:
        if word in OPERATORS:
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _checked(words: list[str], files: Path | None, named: bool) -> tuple[click.Command | None, list[str]]:
    """(the command of dapo that it is, what is wrong with it)."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    places = [place for place, word in enumerate(words) if _is_dapo(words, place)]
    if places:
        return _dapo(words[places[0] + 1 :], files, named)
    if words and words[0] == "make":
        text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(STAMP)", ".venv/.installed")
        targets = re.findall(r"^([\w./-]+):", text, flags=re.MULTILINE)
        wrong = [word for word in words[1:] if "=" not in word and word not in targets]
        return None, [f"make {word}: no such target" for word in wrong]
    for word in words:
        if SCRIPT.fullmatch(word):
            return None, _script(word, words)
    return None, []


def _is_dapo(words: Sequence[str], place: int) -> bool:
    named = Path(words[place]).name == "dapo" and not words[place].endswith("/")
    return named and (place == 0 or words[place - 1] == "-m" or words[0] in ("taskset", "time", "nice"))


def _script(name: str, words: Sequence[str]) -> list[str]:
    """A script of the repository: that it is there, and has the options."""
    if not (ROOT / name).is_file():
        return [f"{name}: no such file"]
    text = (ROOT / name).read_text(encoding="utf-8")
    for module in re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE):  # of the same folder
        beside = (ROOT / name).with_name(f"{module}.py")
        text += beside.read_text(encoding="utf-8") if beside.is_file() else ""
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [f"{name}: has no {option}" for option in options if f'"{option}"' not in text]


def _dapo(words: list[str], files: Path | None, named: bool) -> tuple[click.Command | None, list[str]]:
    command: click.Command = group
    names: list[str] = []
    while isinstance(command, click.Group) and words:
        if words[0] in ("-v", "--verbose", "-h", "--help", "--version"):
            words = words[1:]
            continue
        if words[0] not in command.commands:
            return None, [f"dapo {' '.join([*names, words[0]])}: no such command"]
        command = command.commands[words[0]]
        names.append(words[0])
        words = words[1:]
    if isinstance(command, click.Group) or "--help" in words or "-h" in words:
        return command, []
    try:
        context = command.make_context(" ".join(names), list(words))
    except (click.MissingParameter, click.BadOptionUsage, click.BadParameter) as error:
        left_out = named and (not isinstance(error, click.BadParameter) or isinstance(error, click.MissingParameter))
        stands_for = named and any(re.fullmatch("[A-Z]+", word) for word in words)  # --step N
        return command, [] if left_out or stands_for else [f"dapo {' '.join(names)}: {error.format_message()}"]
    except (click.ClickException, click.exceptions.Exit) as error:
        return command, [f"dapo {' '.join(names)}: {getattr(error, 'message', error)}"]
    arguments = [context.params[one.name or ""] for one in command.params if isinstance(one, click.Argument)]
    free = [word for value in arguments if isinstance(value, tuple) for word in value]
    wrong = [f"dapo {' '.join(names)}: {word}: no such option" for word in free if re.match(r"--?[a-z]", word)]
    if not (context.params.get("from_verl") or context.params.get("from_trl")):
        wrong += _words(names, free, files)
    kinds = ["recipe", *(["name", "one", "other"] if names[0] == "recipe" else [])]
    recipes = [value for name in kinds if isinstance(value := context.params.get(name), str)]
    wrong += [f"{name}: no such recipe" for name in recipes if not _may_be_recipe(name)]
    for sets in (context.params.get("data"), context.params.get("against")):
        wrong += [f"{one}: no such evaluation set" for one in str(sets or "").split(",") if not _may_be_set(one)]
    return command, wrong


def _words(names: Sequence[str], free: Sequence[str], files: Path | None) -> list[str]:
    """key=value words, and the recipe before them where the command takes one."""
    free = [word for word in free if not PLACEHOLDER.match(word)]
    keys = [word for word in free if KEY_VALUE.match(word)]
    wrong = []
    for word in keys:
        try:
            parse_override(word)
        except DapoError as error:
            wrong.append(error.message)
    if wrong or names[0] not in TAKES_RECIPE or not free or free[0] in keys:
        return wrong
    layers = [word for word in free if word not in keys]
    if bad := [layer for layer in layers if not _may_be_recipe(layer)]:
        return [f"{bad[0]}: no such recipe"]
    layers = [str(files / layer) if files and (files / layer).is_file() else layer for layer in layers]
    if not all(layer in recipe_names() or Path(layer).is_file() for layer in layers):
        return []  # RECIPE, or a file that the reader has
    try:
        load_config(*layers, *keys)
    except DapoError as error:
        return [error.message]
    return []


def _may_be_recipe(name: str) -> bool:
    """A shipped one, a file, or a word that stands for one."""
    return (
        name in (*recipe_names(), "...") or name.endswith(".toml") or re.fullmatch(r"[A-Z][A-Z0-9_]*", name) is not None
    )


def _may_be_set(name: str) -> bool:
    """A named one, a file, or a source with its kind before a colon."""
    return not name or name == HOLDOUT or is_named(name) or any(letter in name for letter in ".:/")


def _options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
