"""What commands of a shell do to its variables: assignments, declarations, and what reads or computes one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from dapo.config.foreign.report import Unresolved
from dapo.config.foreign.shell_expand import NAME, Command, Script, Word, change_by_arithmetic

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^\]]*\](\+?=.*)?", re.DOTALL)
DECLARING = ("export", "local", "readonly", "declare", "typeset")
SIGNS = set("$`'\"\\*?~;&|<>(){}")


def obey(script: Script, words: Sequence[Word]) -> None:
    """Keeps account of what a command does to variables; what is no assignment joins `script.commands`."""
    if all(ASSIGNMENT.fullmatch(word.text) and not word.quoted for word in words):
        for word in words:
            _assign(script, word)
        return
    own = list(words)
    while own and (_element(script, own[0]) or ASSIGNMENT.fullmatch(own[0].text)):
        own = own[1:]
    while own and own[0].text in ("command", "builtin"):
        own = own[1:]
    if not own:
        return
    first = own[0].text
    if first in DECLARING:
        _declare(script, first, own[1:])
        return
    if first == "eval":
        own = [Word(w.text, (*w.missing, *(("what eval makes of it",) if SIGNS & set(w.text) else ()))) for w in own]
    script.commands.append(Command(tuple(own), script.line))
    if first in _EFFECTS:
        _EFFECTS[first](script, first, own[1:])
    elif first in script.functions:
        for name in sorted(script.changes.repeated):
            script.forget(name, f"the function {first}")


def _assign(script: Script, word: Word) -> None:
    match = ASSIGNMENT.fullmatch(word.text)
    if match is None:
        return
    name, plus, text = match.groups()
    old = script.variables.get(name, "") if plus else ""
    known = isinstance(old, str) and (name in script.variables or not plus)
    value = Word(old + text, word.missing).value() if known and isinstance(old, str) else None
    if plus and name in script.odd:
        value = None
    script.assign(name, Unresolved(f"${name}", _names(old, name)) if value is None else value)


def _names(old: object, name: str) -> tuple[str, ...]:
    return old.names if isinstance(old, Unresolved) else (name,)


def _element(script: Script, word: Word) -> bool:
    """NAME[INDEX]=VALUE: what the array then holds is not followed."""
    match = ELEMENT.fullmatch(word.text)
    if match is None or match[2] is None:
        return False
    script.forget(match[1], f"{match[1]}[...]=")
    return True


def _declare(script: Script, command: str, words: Sequence[Word]) -> None:
    """export, local, readonly, declare and typeset, with values or without."""
    flags = "".join(word.text[1:] for word in words if re.fullmatch(r"[-+][A-Za-z]+", word.text))
    if "f" in flags or "p" in flags:
        return
    for word in words:
        match = ASSIGNMENT.fullmatch(word.text)
        name = match[1] if match else word.text
        if not NAME.fullmatch(name):
            continue
        odd = next((f"-{flag}" for flag in "nluci" if flag in flags and not (flag == "n" and command == "export")), "")
        if odd:
            script.odd[name] = odd
        if odd == "-n" and match:
            script.odd[match[3]] = odd
            script.forget(match[3], f"{command} -n")
        if command == "local" and not script.opened:
            script.forget(name, "local outside a function")
        elif match:
            _assign(script, word)
        elif odd or (script.opened and command in ("local", "declare", "typeset")):
            script.forget(name, command)
        if command == "readonly" or "r" in flags:
            script.odd.setdefault(name, "readonly")


def _bare(word: Word) -> str:
    """The name of a variable or of the array whose element is named, else ""."""
    element = ELEMENT.fullmatch(word.text)
    name = element[1] if element else word.text
    return name if NAME.fullmatch(name) and not word.missing else ""


def _unset(script: Script, command: str, words: Sequence[Word]) -> None:
    if any(word.text == "-f" for word in words):
        return
    for name in filter(None, map(_bare, words)):
        if script.certain and name not in ("HOME", "PWD") and name not in script.odd and "-n" not in _texts(words):
            script.assign(name, "")
            del script.variables[name]
        else:
            script.forget(name, command)
    _untold(script, command, words)


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.text for word in words]


def _read(script: Script, command: str, words: Sequence[Word]) -> None:
    """read, mapfile, readarray and getopts: every word that may be a name, and those they set unasked."""
    own = {"read": ("REPLY",), "getopts": ("OPTARG", "OPTIND")}.get(command, ("MAPFILE",))
    for name in (*own, *filter(None, map(_bare, words))):
        script.forget(name, command)
    for word in words:
        joined = re.fullmatch(r"-[a-z]*a(\w+)", word.text)
        if joined:
            script.forget(joined[1], command)
    _untold(script, command, words)


def _printf(script: Script, command: str, words: Sequence[Word]) -> None:
    if not words or not words[0].text.startswith("-v"):
        return
    name = words[0].text[2:] or (words[1].text if len(words) > 1 else "")
    script.forget(name.partition("[")[0], "printf -v")
    _untold(script, "printf -v", words[:2])


def _let(script: Script, command: str, words: Sequence[Word]) -> None:
    for word in words:
        change_by_arithmetic(script, word.text, command)
    _untold(script, command, words)


def _untold(script: Script, command: str, words: Sequence[Word]) -> None:
    """A command that sets a variable whose name can't be told may set any."""
    if any(word.missing for word in words):
        _all(script, command, words)


def _all(script: Script, command: str, words: Sequence[Word]) -> None:
    """Any variable that is set, and those that the words name."""
    named = [name for word in words for name in re.findall(r"\b([A-Za-z_]\w*)\+?=", word.text)]
    for name in dict.fromkeys([*script.variables, "HOME", "PWD", *(named if command == "eval" else ())]):
        script.forget(name, command)
    script.notes.append(
        f"line {script.line}: {command} may set any variable; those set before it are taken as not known, "
        "${NAME:-DEFAULT} after it as the default"
    )


def _folder(script: Script, command: str, words: Sequence[Word]) -> None:
    for name in ("PWD", "OLDPWD"):
        script.forget(name, command)
    script.notes.append(f"line {script.line}: {command} is not followed; relative paths are taken from this folder")


_EFFECTS: dict[str, Callable[[Script, str, Sequence[Word]], None]] = {
    "unset": _unset,
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts"), _read),
    "printf": _printf,
    "let": _let,
    **dict.fromkeys(("eval", "source", "."), _all),
    **dict.fromkeys(("cd", "pushd", "popd"), _folder),
}
