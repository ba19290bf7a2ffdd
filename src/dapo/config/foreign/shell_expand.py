"""What a shell script holds while it is read: words, variables, and the $-expansions of a text."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dapo.config.foreign.arithmetic import arithmetic
from dapo.config.foreign.report import Unresolved

NAME = re.compile(r"[A-Za-z_]\w*")
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
MAX_DEPTH = 40
_CHANGING = re.compile(r"\+\+|--|=")
_COMPARING = re.compile(r"[=!]=|(?<!<)<=|(?<!>)>=")


@dataclass(frozen=True)
class Word:
    """One word after expansion."""

    text: str
    missing: tuple[str, ...] = ()
    quoted: bool = False

    def value(self) -> str | Unresolved:
        """The text, or an Unresolved where a part of it is missing."""
        return Unresolved(self.text, self.missing) if self.missing else self.text


Held = str | Unresolved | list[Word]


@dataclass(frozen=True)
class Command:
    """The words of a command and the line that it begins on."""

    words: tuple[Word, ...]
    line: int


@dataclass
class Changes:
    """Which names a whole script sets, and where: what a loop or function finds there another time."""

    counts: Counter[str] = field(default_factory=Counter)
    repeated: set[str] = field(default_factory=set)
    after_functions: set[str] = field(default_factory=set)


@dataclass
class Script:
    """What was read of a script so far.

    Args:
        text: what is left to read, here-documents that were passed taken out.
        joins: places in the text where two lines were made one.
        before: the changes that a first reading found; None in that reading.
        start, passed: where the present command begins in the whole text; how much of that was taken out of `text`.
        opened: if, for, { and the like around the present command.
        odd: names that are declared with a flag, which an assignment does not set to its text.
        fresh: names that assignments before it in the present command set; None where it has other words.
        counted: a place in the whole text, and the line ends before it.
    """

    text: str
    joins: tuple[int, ...] = ()
    before: Changes | None = None
    place: int = 0
    start: int = 0
    passed: int = 0
    brackets: int = 0
    guarded: bool = False
    conditional: bool = False
    opened: list[str] = field(default_factory=list)
    variables: dict[str, Held] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    commands: list[Command] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)
    home: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    fresh: set[str] | None = None
    whole: str = ""
    counted: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        self.whole = self.text

    @property
    def line(self) -> int:
        """The line that the present command begins on."""
        place, ends = self.counted
        ends = (
            ends + self.whole.count("\n", place, self.start)
            if self.start >= place
            else self.whole[: self.start].count("\n")
        )
        self.counted = self.start, ends
        return 1 + ends + bisect_right(self.joins, self.start)

    @property
    def certain(self) -> bool:
        """Whether the present command runs for certain, once and in this shell."""
        return not (self.opened or self.brackets or self.guarded)

    @property
    def in_function(self) -> bool:
        """Whether the present command is of a function (or a group, which is not told apart)."""
        return "{" in self.opened

    @property
    def repeated(self) -> bool:
        """Whether the present command may run again, or later than it stands."""
        return any(word not in ("if", "case") for word in self.opened)

    def held(self, name: str) -> Held | None:
        """A variable's value; in a loop or function an Unresolved where it may have another the next time."""
        value, before = self.variables.get(name), self.before
        if before is None or not self.repeated:
            return value
        again = name in before.repeated
        if self.in_function and name in before.after_functions:
            again = again or name not in self.variables or before.counts[name] > 1
        return Unresolved(f"${name}", (f"{name} (changed in a loop, or around a function)",)) if again else value

    def assign(self, name: str, value: Held) -> None:
        """Sets a variable; where that is not certain to happen, it is not known afterwards."""
        self._count(name)
        if not self.certain:
            value = Unresolved(f"${name}", (f"{name} (set under a condition)",))
        elif name in self.odd and not (self.odd[name] == "-i" and isinstance(value, str) and INTEGER.fullmatch(value)):
            value = Unresolved(f"${name}", (f"{name} (declared with {self.odd[name]})",))
        self.variables[name] = value

    def forget(self, name: str, how: str) -> None:
        """Makes a variable one whose value is not known, by the command `how`."""
        self._count(name)
        self.variables[name] = Unresolved(f"${name}", (f"{name} (changed by {how} on line {self.line})",))

    def _count(self, name: str) -> None:
        self.changes.counts[name] += 1
        if self.repeated:
            self.changes.repeated.add(name)
        elif self.functions:
            self.changes.after_functions.add(name)


@dataclass
class Pieces:
    """A word in the making."""

    parts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """A part that is told."""
        self.parts.append(text)

    def lack(self, text: str, *names: str) -> None:
        """A part that is not."""
        self.parts.append(text)
        self.missing += names


def quote_end(text: str, place: int, quote: str = '"') -> int:
    """Where a quoted text that starts at `place` ends."""
    while place < len(text) and text[place] != quote:
        if text[place] == "\\":
            place += 2
        elif text[place] in "$`" and quote == '"':
            place = dollar_end(text, place)
        else:
            place += 1
    return min(place, len(text))


def dollar_end(text: str, place: int) -> int:
    """Where the expansion that starts with $ or a back-quote ends."""
    if text[place] == "`":
        end = text.find("`", place + 1)
        return len(text) if end < 0 else end + 1
    following = text[place + 1 : place + 2]
    if following and following in "({":
        return balanced(text, place + 1)
    if following == "[":
        end = text.find("]", place)
        return len(text) if end < 0 else end + 1
    name = NAME.match(text, place + 1)
    if name:
        return name.end()
    return place + 2 if following and following in "@*#?$!-0123456789" else place + 1


def balanced(text: str, place: int) -> int:
    """The place after the bracket that closes the one at `place`."""
    pairs = {"(": ")", "{": "}"}
    stack: list[str] = []
    while place < len(text):
        sign = text[place]
        if sign == "\\":
            place += 1
        elif sign in pairs and (sign == "(" or text[place - 1] == "$"):
            stack.append(pairs[sign])
        elif stack and sign == stack[-1]:
            stack.pop()
            if not stack:
                return place + 1
        place += 1
    return len(text)


def expand(script: Script, text: str, pieces: Pieces, depth: int = 0) -> None:
    """Adds a text with its $-expansions to the pieces."""
    place = 0
    while place < len(text):
        sign = text[place]
        if sign == "\\" and place + 1 < len(text):
            pieces.add(text[place + 1] if text[place + 1] in '$`"\\' else text[place : place + 2])
            place += 2
        elif sign in "$`":
            end = dollar_end(text, place)
            _expansion(script, text[place:end], pieces, depth)
            place = end
        else:
            pieces.add(sign)
            place += 1


def _expansion(script: Script, text: str, pieces: Pieces, depth: int) -> None:
    body = text[2:-1]
    if text == "$":
        pieces.add("$")
    elif depth > MAX_DEPTH:
        pieces.lack(text, "an expansion nested too deep")
    elif text.startswith("$((") and text.endswith("))"):
        inner = Pieces()
        expand(script, text[3:-2], inner, depth + 1)
        expression = "".join(inner.parts)
        changed = change_by_arithmetic(script, expression, "$((...))")
        result = "an expression that changes a variable" if changed else arithmetic(expression, _Known(script))
        if inner.missing or isinstance(result, str):
            pieces.lack(text, *(inner.missing or [str(result)]))
        else:
            pieces.add(str(result))
    elif text.startswith("$["):
        change_by_arithmetic(script, text, "$[...]")
        pieces.lack(text, text[:60])
    elif text.startswith(("$(", "`")):
        pieces.lack(text, f"the output of {text[:60]}")
    elif text.startswith("${"):
        _parameter(script, text, body, pieces, depth)
    else:
        _variable(script, text[1:], text, pieces)


class _Known(Mapping[str, Held]):
    """The variables as `Script.held` tells them."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def __getitem__(self, name: str) -> Held:
        held = self.script.held(name)
        if held is None:
            raise KeyError(name)
        return held

    def __iter__(self) -> Iterator[str]:
        return iter(self.script.variables)

    def __len__(self) -> int:
        return len(self.script.variables)


def change_by_arithmetic(script: Script, expression: str, how: str) -> bool:
    """Whether an expression sets variables (=, +=, ++ ...); every name in it is then unknown."""
    if not _CHANGING.search(_COMPARING.sub(" ", expression)):
        return False
    for name in dict.fromkeys(NAME.findall(expression)):
        script.forget(name, how)
    return True


def _parameter(script: Script, text: str, body: str, pieces: Pieces, depth: int) -> None:
    """${NAME} and its forms with a default."""
    match = re.compile(r"([A-Za-z_]\w*|[0-9]+)(:?[-=])(.*)", re.DOTALL).fullmatch(body)
    if match is None:
        name = NAME.fullmatch(body)
        if name:
            _variable(script, body, text, pieces)
        else:
            found = NAME.search(body)
            pieces.lack(text, found[0] if found and "." not in body else text)
        return
    held = script.held(match[1])
    if isinstance(held, (str, Unresolved)) and (held != "" or ":" not in match[2]):
        _variable(script, match[1], text, pieces)
        return
    if isinstance(held, list):
        pieces.lack(text, match[1])
        return
    default = Pieces()
    expand(script, match[3].replace('"', "").replace("'", ""), default, depth + 1)
    pieces.parts += default.parts
    pieces.missing += default.missing
    if match[2].endswith("=") and NAME.fullmatch(match[1]):
        script.assign(match[1], Word("".join(default.parts), tuple(default.missing)).value())


def _variable(script: Script, name: str, text: str, pieces: Pieces) -> None:
    held = script.held(name)
    if isinstance(held, str):
        pieces.add(held)
    elif isinstance(held, Unresolved):
        pieces.lack(text, *held.names)
    elif name == "HOME" and held is None:
        script.home.add(name)
        pieces.add(os.path.expanduser("~"))
    elif name == "PWD" and held is None:
        script.home.add(name)
        pieces.add(os.getcwd())
    else:
        pieces.lack(text, name if NAME.fullmatch(name) else text)
