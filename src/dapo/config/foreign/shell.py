"""A shell script as a list of commands with their words, read and never run.

Understood: comments, continued lines, quotes, NAME=VALUE, NAME=(WORD ...), $NAME, ${NAME}, ${NAME:-DEFAULT},
"${NAME[@]}", $((ARITHMETIC)) and here-documents. What only a shell could tell ($(...), a variable from
outside, an assignment inside if, for, while or a function, what read or eval make of a variable) becomes an
Unresolved with its name.
"""

from __future__ import annotations

import re
from itertools import accumulate

from dapo.config.foreign.report import Unresolved
from dapo.config.foreign.shell_expand import (
    NAME,
    Changes,
    Pieces,
    Script,
    Word,
    balanced,
    change_by_arithmetic,
    dollar_end,
    expand,
    quote_end,
)
from dapo.config.foreign.shell_sets import ASSIGNMENT, obey

OPENING = ("if", "for", "while", "until", "case", "select", "{")
CLOSING = ("fi", "done", "esac", "}")
KEYWORDS = (*OPENING, *CLOSING, "then", "else", "elif", "do", "!", "time")
ALONE = frozenset(KEYWORDS) - {"for", "select", "case"}
COMMENT = re.compile(r"^((?:[^\n'\"]*[ \t])?#[^\n'\"]*)\\\n", re.MULTILINE)  # goes on over no line end
FUNCTION = re.compile(r"(?:function[ \t]+([\w.:-]+)(?:[ \t]*\([ \t]*\))?|([\w.:-]+)[ \t]*\([ \t]*\))(?=\s)")


def read_script(text: str) -> Script:
    """Reads a script; `commands` holds the words of each command that is not an assignment.

    A script with loops or functions is read twice: only after the whole is it known what changes in them.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = re.sub(COMMENT, r"\1 \n", text).split("\\\n")
    joined, joins = "".join(lines), tuple(accumulate(len(line) for line in lines[:-1]))
    script = _read(joined, joins, None)
    return _read(joined, joins, script.changes) if script.conditional else script


def _read(text: str, joins: tuple[int, ...], before: Changes | None) -> Script:
    script = Script(text, joins, before)
    words: list[Word] = []
    while script.place < len(script.text):  # which gets shorter where a here-document is taken out
        _blanks(script)
        rest = script.text[script.place : script.place + 2]
        if not words:
            script.start = script.place + script.passed
        if rest == "((" and _arithmetic(script, words):
            continue
        if rest == "&>" or rest[:1] in ("<", ">"):
            _redirection(script)
        elif not rest or rest[0] in "\n;&|()":
            sign = rest if rest in ("&&", "||", "|&", ";;") else rest[:1]
            _end_command(script, words, sign)
            _next_command(script, bool(words), sign)
            words = []
            script.place += max(1, len(sign))
        elif words or not _function(script):
            place = script.place
            more = _words(script)
            words += _after(script, words, more, script.text[place : script.place])
            if len(words) == 1 and not words[0].quoted and words[0].text in ALONE:
                _end_command(script, words, "")  # what follows is already inside
                words = []
    _end_command(script, words, "")
    return script


def _after(script: Script, before: list[Word], words: list[Word], text: str) -> list[Word]:
    """Of A=1 B=$A, where the shell sets A first: B is not told, for it was read with the A from before."""
    if not before:
        script.fresh = set()
    match = ASSIGNMENT.fullmatch(words[0].text) if len(words) == 1 and not words[0].quoted else None
    if script.fresh is None or match is None:
        script.fresh = None
        return words
    used = [f"{name} (set on the same line)" for name in NAME.findall(text.partition("=")[2]) if name in script.fresh]
    script.fresh.add(match[1])
    return [Word(words[0].text, (*words[0].missing, *used))] if used else words


def _next_command(script: Script, ended: bool, sign: str) -> None:
    """Whether the next command runs in this shell and for certain: not in ( ), nor after &&, || or |."""
    if sign == "(":
        script.brackets += 1
    elif sign == ")":
        script.brackets = max(0, script.brackets - 1)
    if ended or sign != "\n":  # a line may end after && and the like
        script.guarded = sign in ("&&", "||", "|", "|&")


def _arithmetic(script: Script, words: list[Word]) -> bool:
    """Passes ((...)) where a command may stand, or the head of a for; False where it is none."""
    end = balanced(script.text, script.place)
    if (words and words[-1].text not in KEYWORDS) or script.text[end - 2 : end] != "))":
        return False
    expression = script.text[script.place + 2 : end - 2]
    change_by_arithmetic(script, expression, "((...))")
    script.place = end
    return True


def _function(script: Script) -> bool:
    """Passes the name of a function that is defined here."""
    match = FUNCTION.match(script.text, script.place)
    if match is None:
        return False
    script.functions.add(match[1] or match[2])
    script.conditional = True
    script.place = match.end()
    return True


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
        if text[script.place : script.place + 1] == "(" and text[script.place - 1] in "<>":
            script.place = balanced(text, script.place)
        elif script.place < len(text) and text[script.place] not in "\n;()":
            _words(script)
        return
    line_end = text.find("\n", here.end())
    closing = re.compile(rf"^\t*{re.escape(here[2])}[ \t]*$", re.MULTILINE)
    end = closing.search(text, line_end + 1) if line_end >= 0 else None
    if end is None:
        script.place = here.end()
        return
    script.passed += here.end() - here.start() + end.end() - line_end
    script.text = text[: here.start()] + text[here.end() : line_end] + text[end.end() :]
    script.place = here.start()


def _end_command(script: Script, words: list[Word], sign: str) -> None:
    """Takes a command that `sign` ends: keywords before it, then what it does."""
    while words and not words[0].quoted and words[0].text in KEYWORDS:
        first = words[0].text
        if first in OPENING:
            script.opened.append(first)
            script.conditional = True
            if first in ("for", "select") and len(words) > 1:
                script.forget(words[1].text, first)
            if first in ("for", "select", "case"):
                return
        elif first in CLOSING and script.opened:
            script.opened.pop()
        words = words[1:]
    guarded = script.guarded
    script.guarded = guarded or sign in ("|", "|&", "&")  # which make a shell of its own
    if words:
        obey(script, words)
    script.guarded = guarded


def _words(script: Script, arrays: bool = True) -> list[Word]:
    """The next word, expanded; "${NAME[@]}" gives several, an array assignment none."""
    array = re.compile(r"([A-Za-z_]\w*)(\+?)=\(").match(script.text, script.place)
    if array is not None and arrays:
        _array(script, array[1], bool(array[2]), array.end())
        return []
    spread = re.compile(r"(\"?)\$\{([A-Za-z_]\w*)\[[@*]\]\}\1(?=[\s;&|)]|$)").match(script.text, script.place)
    if spread is not None:
        script.place = spread.end()
        held = script.held(spread[2])
        if isinstance(held, list):
            return list(held)
        return [Word(spread[0], held.names if isinstance(held, Unresolved) else (spread[2],))]
    return _word(script)


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
    if append and not isinstance(held, list) and held is not None:
        script.forget(name, f"{name}+=(...)")
    else:
        script.assign(name, words)


def _word(script: Script) -> list[Word]:
    """Reads up to the next blank or sign outside quotes; a variable without quotes may hold several words."""
    text, pieces, quoted = script.text, Pieces(), script.text[script.place] in "'\""
    start, split = script.place, False
    while script.place < len(text):
        sign = text[script.place]
        if sign in " \t\v\f\n;&|()<>":
            break
        if text.startswith("$'", script.place):
            end = min(quote_end(text, script.place + 2, "'"), len(text))
            held = text[script.place + 2 : end]
            pieces.lack(held, "what $'...' stands for") if "\\" in held else pieces.add(held)
            script.place = end + 1
        elif text.startswith('$"', script.place):
            script.place += 1
        elif sign == "'":
            end = text.find("'", script.place + 1)
            end = len(text) if end < 0 else end
            pieces.add(text[script.place + 1 : end])
            script.place = end + 1
        elif sign == '"':
            end = quote_end(text, script.place + 1)
            expand(script, text[script.place + 1 : end], pieces)
            script.place = end + 1
        elif sign == "\\":
            pieces.add(text[script.place + 1 : script.place + 2])
            script.place += 2
        elif sign in "$`":
            end = dollar_end(text, script.place)
            told = len(pieces.parts)
            expand(script, text[script.place : end], pieces)
            split = split or bool(re.search(r"\s", "".join(pieces.parts[told:])))
            script.place = end
        elif sign == "~" and re.fullmatch(r"([A-Za-z_]\w*\+?=)?", "".join(pieces.parts)) and not quoted:
            expand(script, "$HOME" if re.match(r"~(?=[/\s;&|)]|$)", text[script.place :][:2]) else sign, pieces)
            script.place += 1
        else:
            pieces.add(sign)
            script.place += 1
    word = Word("".join(pieces.parts), tuple(dict.fromkeys(pieces.missing)), quoted)
    if not split or word.missing or ASSIGNMENT.fullmatch(word.text):
        return [word]
    if re.fullmatch(r"\$(\w+|\{[^{}]*\})", text[start : script.place]):
        return [Word(part, quoted=True) for part in word.text.split()]
    return [Word(word.text, (f"{text[start : script.place][:60]} (it has blanks and no quotes)",), quoted)]
