"""dapo completion: words that complete themselves, and the script that makes a shell ask for them.

A word is completed by what its metavar says it may be (RECIPE, KEY=VALUE, RUN, a file), so that a new verb
completes as it reads. Loads no torch.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)
from click.types import StringParamType

from dapo.config.keys import fields
from dapo.config.load import recipe_names
from dapo.errors import UserError
from dapo.printable import one_line

HELP_WIDTH = 72  # of a key's meaning beside it; zsh and fish show it
_KEYS = re.compile(r"([a-z]+\.)?KEY=VALUE")
_FOLDER = re.compile(r"\b(DIR|FOLDER)\b")
_FILE = re.compile(r"FILE|SOURCE|MODEL|EVALUATION|RUN|A\[|\.\w+\b")
_STEP = re.compile(r"step_0*(\d+)")


class Word(StringParamType):
    """A text on the command line that completes itself.

    metavar: what it may be, as the verb's help has it.
    """

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """What begins as the word does; where there is nothing, files or folders are left to the shell."""
        found = []
        with contextlib.suppress(OSError, ValueError):  # a folder that can't be read, a text that is no path
            begun = bool(param.name and ctx.params.get(param.name))
            found = [item for item in self._may_be(begun, incomplete) if item.value.startswith(incomplete)]
        if not found and (kind := _left_to_the_shell(self.metavar, incomplete)):
            return [CompletionItem(incomplete, type=kind)]
        return found

    def _may_be(self, begun: bool, incomplete: str) -> Iterator[CompletionItem[str]]:
        """begun: whether words of this parameter stand before this one. RECIPE [OVERLAY.toml]: one recipe, first."""
        if "RECIPE" in self.metavar and not (begun and "RECIPE [" in self.metavar):
            yield from (CompletionItem(name) for name in recipe_names())
        if "RUN" in self.metavar:
            yield from (CompletionItem(name) for name in _runs(incomplete, "@STEP" in self.metavar) if _is_word(name))
        if (keys := _KEYS.search(self.metavar)) and (begun or incomplete):
            yield from _settings(incomplete, keys[1] or "")


def _left_to_the_shell(metavar: str, incomplete: str) -> str | None:
    """The kind of click's completion that stands for paths; None where the word is no path."""
    if incomplete.startswith("-"):
        return None
    if _FOLDER.search(metavar):
        return "dir"
    key, equals, _ = incomplete.partition("=")
    if equals and _KEYS.search(metavar):
        return "file" if any(k == key and str in _leaves(info.annotation) for k, info in fields()) else None
    return "file" if _FILE.search(metavar) else None


def _settings(incomplete: str, prefix: str) -> Iterator[CompletionItem[str]]:
    """Every KEY= that begins with the prefix; behind a whole one, its values where they can be listed."""
    named, equals, _ = incomplete.partition("=")
    for key, info in fields():
        if not key.startswith(prefix):
            continue
        if not equals:
            yield CompletionItem(f"{key}=", help=one_line(info.description or key, HELP_WIDTH))
        elif key == named:
            yield from (CompletionItem(f"{key}={value}") for value in _choices(info.annotation))


def _choices(annotation: Any) -> Iterator[str]:
    for leaf in _leaves(annotation):
        if leaf is bool:
            yield from ("true", "false")
        elif leaf is NoneType:
            yield "off"
        elif not isinstance(leaf, type):
            yield str(leaf)


def _leaves(annotation: Any) -> Iterator[Any]:
    """The members of unions and the values of literals; lists and tables are themselves."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is Annotated:
        yield from _leaves(get_args(annotation)[0])
    elif isinstance(annotation, type) or get_origin(annotation) in (tuple, dict):
        yield get_origin(annotation) or annotation
    else:
        for part in get_args(annotation):
            yield from _leaves(part)


def _runs(incomplete: str, with_steps: bool) -> Iterator[str]:
    """latest, runs/NAME, and what lies in the folder that is typed, the newest first; behind @ the checkpoints."""
    name, at, _ = incomplete.rpartition("@")
    if at and with_steps:
        newest = next(iter(_runs_in("runs/")), None) if name == "latest" else name
        steps = {int(found[1]) for path in Path(newest or name, "checkpoints").iterdir() if (found := _step(path))}
        yield from (f"{name}@{step}" for step in sorted(steps, reverse=True))
        return
    if known := _runs_in("runs/"):
        yield from ("latest", *known)
    typed = incomplete[: incomplete.rfind("/") + 1]
    if typed != "runs/":
        yield from _runs_in(typed)


def _step(path: Path) -> re.Match[str] | None:
    return _STEP.fullmatch(path.name)


def _runs_in(folder: str) -> list[str]:
    files = Path(folder).glob("*/config.resolved.json")
    newest_first = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
    return [f"{folder}{file.parent.name}" for file in newest_first]


def _is_word(text: str) -> bool:
    """Whether a shell takes the text as one word without quotes."""
    return re.fullmatch(r"[\w./@+:,=%-]+", text) is not None


def complete_words(command: click.Command) -> None:
    """Makes every plain text of a command, and of the commands below it, a Word."""
    for param in command.params:
        if type(param.type) is StringParamType:
            param.type = Word(param.metavar or "")
    if isinstance(command, click.Group):
        for part in command.commands.values():
            complete_words(part)


# Bash cuts words at "=", ":" and "@" and replaces what is behind the last of them (an "@" with it), so the function
# asks with the whole line and takes off what stands before the cut. No blank follows a KEY=.
_BASH = r"""%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} type value
    local word=${line##*[[:space:]]}
    local kept=${word%%"${word##*["$COMP_WORDBREAKS"]}"}
    kept=${kept%%@}
    while IFS=, read -r type value; do
        case $type in
            plain)
                COMPREPLY+=("${value#"$kept"}")
                if [[ $value == *= ]]; then compopt -o nospace; fi
                ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(env COMP_LINE="$line" %(complete_var)s=dapobash_complete "${1/#\~/$HOME}" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class DapoBash(BashComplete):
    """Bash, with words that are not cut at "=", "@" and ":"."""

    name = "dapobash"
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The whole words before the cursor, and the begun one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1].isspace() else ""
        return words[1:], incomplete


SHELLS: dict[str, tuple[type[ShellComplete], str]] = {
    "bash": (DapoBash, "dapo completion bash >> ~/.bashrc"),
    "zsh": (ZshComplete, "dapo completion zsh >> ~/.zshrc  (below compinit)"),
    "fish": (FishComplete, "dapo completion fish > ~/.config/fish/completions/dapo.fish"),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("shell", required=False, type=click.Choice(list(SHELLS)), metavar="[SHELL]")
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the script that completes dapo's words in a SHELL: bash, zsh or fish.

    Without a name, the shell that the environment names. Its first comment line says how to install it.

    \b
        dapo completion bash >> ~/.bashrc

    It completes verbs, options, recipes, settings (KEY=, and values that can be listed), runs and their steps.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise UserError("name the shell: dapo completion bash, dapo completion zsh or dapo completion fish")
    kind, install = SHELLS[name]
    script = kind(ctx.find_root().command, {}, "dapo", "_DAPO_COMPLETE").source()
    first, rest = script.split("\n", 1) if script.startswith("#compdef") else ("", script)  # zsh looks for it on top
    click.echo(f"{first}\n# To install: {install}\n{rest}".lstrip("\n"), nl=False)
