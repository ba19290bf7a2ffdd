"""A shell script as a list of commands with their words, read and never run.

Understood: comments, continued lines, quotes, NAME=VALUE, NAME=(WORD ...), $NAME, ${NAME}, ${NAME:-DEFAULT},
"${NAME[@]}", $((ARITHMETIC)) and here-documents. What only a shell could tell ($(...), a variable from
outside, an assignment inside if, for, while or a function) becomes an Unresolved with its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dapo.config.foreign.arithmetic import arithmetic
from dapo.config.foreign.report import Unresolved

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
NAME = re.compile(r"[A-Za-z_]\w*")
OPENING = ("if", "for", "while", "until", "case", "select", "{", "(")
CLOSING = ("fi", "done", "esac", "}", ")")
DECLARING = ("export", "local", "readonly", "declare", "typeset")
MAX_DEPTH = 40


@dataclass(frozen=True)
class Word:
    """One word after expansion."""

    text: str
    missing: tuple[str, ...] = ()
    quoted: bool = False

    def value(self) -> str | Unresolved:
        """The text, or an Unresolved where a part of it is missing."""
        return Unresolved(self.text, self.missing) if self.missing else self.text


@dataclass
class Script:
    """What was read of a script so far."""

    text: str
    place: int = 0
    depth: int = 0
    brackets: int = 0
    guarded: bool = False
    variables: dict[str, str | Unresolved | list[Word]] = field(default_factory=dict)
    commands: list[list[Word]] = field(default_factory=list)
    conditional: bool = False
    home: set[str] = field(default_factory=set)


def read_script(text: str) -> Script:
    """Reads a script; `commands` holds the words of each command that is not an assignment."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\\\n", " ")
    script = Script(text)
    words: list[Word] = []
    while script.place < len(script.text):  # which gets shorter where a here-document is taken out
        _blanks(script)
        rest = script.text[script.place : script.place + 1]
        if not rest or rest in "\n;&|()":
            _end_command(script, words)
            words = []
            _bracket(script, rest)
            script.place += 1
        elif rest in "<>":
            _redirection(script)
        else:
            words += _words(script)
    _end_command(script, words)
    return script


def _bracket(script: Script, sign: str) -> None:
    """Whether the next command runs in this shell and for certain: not in ( ), nor after &&, || or |."""
    if sign == "(":
        script.brackets += 1
    elif sign == ")":
        script.brackets = max(0, script.brackets - 1)
    script.guarded = bool(sign) and sign in "&|"


def _blanks(script: Script) -> None:
    text = script.text
    while script.place < len(text) and text[script.place] in " \t\v\f":
        script.place += 1
    if text[script.place : script.place + 1] == "#":
        end = text.find("\n", script.place)
        script.place = len(text) if end < 0 else end


def _redirection(script: Script) -> None:
    """Skips a redirection, and the lines of a here-document."""
    text = script.text
    here = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1").match(text, script.place)
    if here is None:
        while script.place < len(text) and text[script.place] in "<>&| \t":
            script.place += 1
        if script.place < len(text) and text[script.place] not in "\n;()":
            _words(script)
        return
    line_end = text.find("\n", here.end())
    closing = re.compile(rf"^\t*{re.escape(here[2])}[ \t]*$", re.MULTILINE)
    end = closing.search(text, line_end + 1) if line_end >= 0 else None
    if end is None:
        script.place = here.end()
        return
    script.text = text[: here.start()] + text[here.end() : line_end] + text[end.end() :]
    script.place = here.start()


def _end_command(script: Script, words: list[Word]) -> None:
    if not words:
        return
    first = words[0].text
    while words and not words[0].quoted and first in (*OPENING, *CLOSING, "then", "else", "elif", "do", "!", "time"):
        if first in OPENING:
            script.depth += 1
            script.conditional = True
            if first in ("for", "select") and len(words) > 1:
                script.variables[words[1].text] = Unresolved(f"${words[1].text}", (words[1].text,))
                return
        elif first in CLOSING:
            script.depth = max(0, script.depth - 1)
        words = words[1:]
        first = words[0].text if words else ""
    if words and first in DECLARING:
        _assign_all(script, [word for word in words[1:] if ASSIGNMENT.fullmatch(word.text)])
    elif words and all(ASSIGNMENT.fullmatch(w.text) and not w.quoted and "." not in _key(w) for w in words):
        _assign_all(script, words)
    elif words:
        script.commands.append(words)


def _key(word: Word) -> str:
    return word.text.partition("=")[0]


def _assign_all(script: Script, words: list[Word]) -> None:
    for word in words:
        match = ASSIGNMENT.fullmatch(word.text)
        if match is None:
            continue
        name, plus, text = match.groups()
        if script.depth or script.brackets or script.guarded:
            value: str | Unresolved = Unresolved(f"${name}", (f"{name} (set under a condition)",))
        elif plus:
            old = script.variables.get(name, "")
            value = Word(old + text, word.missing).value() if isinstance(old, str) else Unresolved(f"${name}", (name,))
        else:
            value = Word(text, word.missing).value()
        script.variables[name] = value


def _words(script: Script, arrays: bool = True) -> list[Word]:
    """The next word, expanded; "${NAME[@]}" gives several, an array assignment none."""
    array = re.compile(r"([A-Za-z_]\w*)(\+?)=\(").match(script.text, script.place)
    if array is not None and arrays:
        _array(script, array[1], bool(array[2]), array.end())
        return []
    spread = re.compile(r"(\"?)\$\{([A-Za-z_]\w*)\[[@*]\]\}\1(?=[\s;&|)]|$)").match(script.text, script.place)
    if spread is not None:
        script.place = spread.end()
        held = script.variables.get(spread[2])
        return list(held) if isinstance(held, list) else [Word(spread[0], (spread[2],))]
    return [_word(script)]


def _array(script: Script, name: str, append: bool, start: int) -> None:
    script.place = start
    held = script.variables.get(name)
    words: list[Word] = list(held) if append and isinstance(held, list) else []
    while script.place < len(script.text):
        _blanks(script)
        sign = script.text[script.place : script.place + 1]
        if sign == ")":
            script.place += 1
            break
        if sign in ("\n", ";", "&", "|", "(", "<", ">"):
            script.place += 1
        elif sign:
            words += _words(script, arrays=False)
    certain = not (script.depth or script.brackets or script.guarded)
    script.variables[name] = words if certain else Unresolved(f"${name}", (f"{name} (set under a condition)",))


def _word(script: Script) -> Word:
    """Reads up to the next blank or sign outside quotes."""
    text, pieces, quoted = script.text, Pieces(), script.text[script.place] in "'\""
    while script.place < len(text):
        sign = text[script.place]
        if sign in " \t\v\f\n;&|()<>":
            break
        if sign == "'":
            end = text.find("'", script.place + 1)
            end = len(text) if end < 0 else end
            pieces.add(text[script.place + 1 : end])
            script.place = end + 1
        elif sign == '"':
            end = _quote_end(text, script.place + 1)
            expand(script, text[script.place + 1 : end], pieces)
            script.place = end + 1
        elif sign == "\\":
            pieces.add(text[script.place + 1 : script.place + 2])
            script.place += 2
        elif sign in "$`":
            end = _dollar_end(text, script.place)
            expand(script, text[script.place : end], pieces)
            script.place = end
        else:
            pieces.add(sign)
            script.place += 1
    return Word("".join(pieces.parts), tuple(dict.fromkeys(pieces.missing)), quoted)


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


def _quote_end(text: str, place: int) -> int:
    """Where a double-quoted text that starts at `place` ends."""
    while place < len(text) and text[place] != '"':
        if text[place] == "\\":
            place += 2
        elif text[place] in "$`":
            place = _dollar_end(text, place)
        else:
            place += 1
    return min(place, len(text))


def _dollar_end(text: str, place: int) -> int:
    """Where the expansion that starts with $ or a back-quote ends."""
    if text[place] == "`":
        end = text.find("`", place + 1)
        return len(text) if end < 0 else end + 1
    following = text[place + 1 : place + 2]
    if following and following in "({":
        return _balanced(text, place + 1)
    name = NAME.match(text, place + 1)
    if name:
        return name.end()
    return place + 2 if following and following in "@*#?$!-0123456789" else place + 1


def _balanced(text: str, place: int) -> int:
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
            end = _dollar_end(text, place)
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
        result = arithmetic("".join(inner.parts), script.variables)
        if inner.missing or isinstance(result, str):
            pieces.lack(text, *(inner.missing or [str(result)]))
        else:
            pieces.add(str(result))
    elif text.startswith(("$(", "`")):
        pieces.lack(text, f"the output of {text[:60]}")
    elif text.startswith("${"):
        _parameter(script, text, body, pieces, depth)
    else:
        _variable(script, text[1:], text, pieces)


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
    held = script.variables.get(match[1])
    if isinstance(held, (str, Unresolved)) and (held != "" or ":" not in match[2]):
        _variable(script, match[1], text, pieces)
        return
    expand(script, match[3].replace('"', "").replace("'", ""), pieces, depth + 1)


def _variable(script: Script, name: str, text: str, pieces: Pieces) -> None:
    held = script.variables.get(name)
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


def settings(script: Script) -> Iterator[tuple[str, str | Unresolved]]:
    """(key, value) of every dotted key=value word of a command; a leading + or ++ is left out."""
    for command in script.commands:
        for word in command:
            match = re.compile(r"(\+{0,2})([A-Za-z_][\w-]*(?:\.[\w@/-]+)+)=(.*)", re.DOTALL).fullmatch(word.text)
            if match:
                yield match[2], Word(match[3], word.missing).value()
