"""Files and key=value words of verl and TRL as flat keys with values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from dapo.config.foreign.python_file import read_python
from dapo.config.foreign.report import Given, Unresolved, plain
from dapo.config.foreign.shell import read_script
from dapo.config.foreign.shell_runs import settings, training
from dapo.config.load import all_keys, parse_override
from dapo.errors import ConfigError

LARGEST_FILE = 1_000_000  # bytes
MOST_KEYS = 20_000
DEEPEST = 40  # interpolations in one another
WORD = re.compile(r"(\+{0,2})([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")


def split_own(words: Sequence[str], foreign: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """(words of the source, keys of dapo given as words): a key of dapo that the source does not know is dapo's."""
    ours, theirs, own = set(all_keys()), [], {}
    for word in words:
        key = word.partition("=")[0]
        if "=" in word and key in ours and key not in foreign and not is_file(word):
            value: Any = parse_override(word)
            for part in key.split("."):
                value = value[part]
            own[key] = value
        else:
            theirs.append(word)
    return theirs, own


def read_verl(words: Sequence[str], defaults: Mapping[str, Any]) -> Given:
    """Scripts, YAML files and Hydra overrides, the later winning.

    Args:
        words: paths and key=value words.
        defaults: verl's own, for interpolations that name a key not given.

    Raises:
        ConfigError: naming the file or word.
    """
    values: dict[str, Any] = {}
    notes: list[str] = []
    for word in words:
        override = WORD.fullmatch(word)
        if override and not is_file(word):
            values[override[2]] = scalar(override[3])
        elif word.startswith("~") and "." in word and not is_file(os.path.expanduser(word)):
            notes.append(f"{word}: a deleted key is left out here as well; it had verl's default or none")
            values.pop(word[1:].partition("=")[0], None)
        elif word.lower().endswith((".yaml", ".yml")):
            values.update(_yaml_file(word, notes, hydra=True))
        elif word.lower().endswith(SCRIPTS) or _is_script(word):
            values.update(_script(word, notes))
        else:
            raise ConfigError(f"{word}: give a .yaml file, a shell script (.sh) or key=value words")
    return Given(interpolate(values, defaults), tuple(notes))


def read_trl(words: Sequence[str]) -> Given:
    """YAML files as `trl grpo --config` takes them, Python scripts and key=value words, the later winning.

    Raises:
        ConfigError: naming the file or word.
    """
    values: dict[str, Any] = {}
    notes: list[str] = []
    for word in words:
        override = WORD.fullmatch(word)
        if override and not is_file(word):
            values[override[2]] = scalar(override[3])
        elif word.lower().endswith((".yaml", ".yml")):
            values.update(_yaml_file(word, notes, hydra=False))
        elif word.lower().endswith(".py"):
            values.update(read_python(word, read_text(word)))
        else:
            raise ConfigError(f"{word}: give a .yaml file, a .py script or key=value words")
    return Given(values, tuple(notes))


def read_text(name: str) -> str:
    """A text file. Raises ConfigError where it is missing, empty, too large or no text."""
    try:
        with Path(name).open("rb") as handle:
            data = handle.read(LARGEST_FILE + 1)
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: can't be read as UTF-8 text: {error}") from None
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"{name}: over {LARGEST_FILE} bytes, which is no configuration")
    if "\0" in text:
        raise ConfigError(f"{name}: a binary file; give a text file")
    if not text.strip():
        raise ConfigError(f"{name}: the file is empty; give one that sets something")
    return text


def is_file(word: str) -> bool:
    """Whether a word names a file; what is too long for a name does not."""
    try:
        return Path(word).is_file()
    except (OSError, ValueError):
        return False


def _is_script(name: str) -> bool:
    try:
        with Path(name).open("rb") as handle:
            return handle.read(2) == b"#!"
    except (OSError, ValueError):
        return False


def _script(name: str, notes: list[str]) -> dict[str, Any]:
    script = read_script(read_text(name))
    found = {key: value if isinstance(value, Unresolved) else scalar(value) for key, value in settings(script)}
    if not found:
        raise ConfigError(f"{name}: no key=value word of a command was found in it")
    if script.home:
        notes.append(f"{name}: {', '.join(sorted(script.home))} taken as this shell would, of this machine and folder")
    if script.conditional:
        notes.append(f"{name}: has if, for, case or functions; which branch runs is not followed")
    run, remarks = training(script)
    notes += [f"{name}: {remark}" for remark in dict.fromkeys([*script.notes, *remarks])]
    if run and any(word.text in ("$@", "$*") for word in run.words):
        notes.append(f"{name}: passes on its own arguments ($@); give them as words after the file")
    return found


def scalar(text: str) -> Any:
    """A Hydra value: null, a truth value, a number, a quoted text, a list or table, else the text itself."""
    text = text.strip()
    if text[:1] in ("'", '"') and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    if text == "" or text.startswith("${"):
        return text
    words = {"null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        if re.fullmatch(r"[+-]?\d+", text):
            return int(text)
        if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
            return float(text)
        if text[0] not in "[{" or _nesting(text) > 2 * DEEPEST:
            return text
        return _clean(yaml.safe_load(text), [0], text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _yaml_file(name: str, notes: list[str], hydra: bool) -> dict[str, Any]:
    text = read_text(name)
    if _nesting(text) > 2 * DEEPEST:
        raise ConfigError(f"{name}: not valid YAML: brackets over {2 * DEEPEST} deep")
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f"line {place.line + 1}: " if place else ""
        what = getattr(error, "problem", None) or "not valid YAML"
        raise ConfigError(f"{name}: {where}not valid YAML: {what}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{name}: not valid YAML: a value that is too large or nested too deep") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: a YAML file with keys is wanted, and this one holds a {type(tree).__name__}")
    if hydra and "defaults" in tree:
        tree = {key: value for key, value in tree.items() if key != "defaults"}
        notes.append(f"{name}: its Hydra list `defaults` was not followed; give those files before this one")
    if hydra and isinstance(tree.get("hydra"), dict):
        tree = {key: value for key, value in tree.items() if key != "hydra"}
        notes.append(f"{name}: its section `hydra` (search path, output folders) was not read")
    cleaned: dict[str, Any] = _clean(tree, [0], name)
    return dict(_flat(cleaned, "")) if hydra else cleaned


def _clean(value: Any, seen: list[int], name: str, depth: int = 0) -> Any:
    """YAML's dates, sets and the like as text. Raises ConfigError where references make it endless or huge."""
    seen[0] += 1
    if seen[0] > MOST_KEYS or depth > DEEPEST:
        raise ConfigError(f"{name[:200]}: over {MOST_KEYS} values, or nested over {DEEPEST} deep: no configuration")
    if isinstance(value, dict):
        return {str(key): _clean(part, seen, name, depth + 1) for key, part in value.items()}
    if isinstance(value, list):
        return [_clean(part, seen, name, depth + 1) for part in value]
    return plain(value)


def _nesting(text: str) -> int:
    """How deep brackets stand in one another, quotes not minded; PyYAML takes seconds over deep ones."""
    depth = deepest = 0
    for sign in re.findall(r"[\[\]{}]", text):
        depth = max(0, depth + (1 if sign in "[{" else -1))
        deepest = max(deepest, depth)
    return deepest


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        full = f"{prefix}{key}"
        if full.endswith("_target_"):
            continue
        if isinstance(value, dict) and value:
            yield from _flat(value, full + ".")
        else:
            yield full, value


# --- interpolation --------------------------------------------------------------------------------


def interpolate(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Every ${key}, ${oc.env:NAME,default}, ${oc.select:key,default} filled in; what can't be is an Unresolved.

    Raises:
        ConfigError: values that name one another in a circle.
    """
    reader = _Interpolation(values, defaults)
    return {key: reader.fill(value, (key,)) for key, value in values.items()}


class _Interpolation:
    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.values, self.defaults = values, defaults

    def fill(self, value: Any, chain: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            filled = [self.fill(part, chain) for part in value]
            lacking = tuple(name for part in filled if isinstance(part, Unresolved) for name in part.names)
            return Unresolved(str(value), lacking) if lacking else filled
        if not isinstance(value, str) or "${" not in value:
            return value
        if len(chain) > DEEPEST:
            raise ConfigError(f"{chain[0]}: interpolations nested over {DEEPEST} deep")
        parts, place = [], 0
        while (start := value.find("${", place)) >= 0:
            end = _closing(value, start)
            parts += [value[place:start], self._one(value[start + 2 : end - 1], chain)]
            place = end
        parts = [part for part in [*parts, value[place:]] if part != ""]
        missing = tuple(name for part in parts if isinstance(part, Unresolved) for name in part.names)
        if missing:
            return Unresolved(value, missing)
        return parts[0] if len(parts) == 1 else "".join("" if part is None else str(part) for part in parts)

    def _one(self, body: str, chain: tuple[str, ...]) -> Any:
        resolver, colon, arguments = body.partition(":")
        if colon:
            name, comma, default = arguments.partition(",")
            if resolver == "oc.select":
                found = self._key(name.strip(), chain)
                if not isinstance(found, Unresolved):
                    return found
                return self.fill(scalar(default), chain) if comma else None
            if resolver == "oc.env" and comma:
                return self.fill(scalar(default), chain)
            return Unresolved(f"${{{body}}}", (f"${{{body}}}",))
        return self._key(body.strip(), chain)

    def _key(self, name: str, chain: tuple[str, ...]) -> Any:
        if name.startswith("."):
            up = len(name) - len(name.lstrip("."))
            name = ".".join([*chain[-1].split(".")[:-up], name.lstrip(".")])
        if name in chain:
            raise ConfigError(
                f"interpolation goes in a circle: {' -> '.join((*chain, name))}; set one of them to a value"
            )
        if name in self.values:
            return self.fill(self.values[name], (*chain, name))
        if name in self.defaults:
            return self.defaults[name]
        return Unresolved(f"${{{name}}}", (name,))


def _closing(text: str, start: int) -> int:
    """The place after the bracket that closes the ${ at `start`."""
    depth = 0
    for place in range(start + 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return len(text) + 1
