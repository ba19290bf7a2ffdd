"""What a translation gives: a recipe, and an account of every key that was read."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dapo.config.keys import Tree, all_keys, resolve
from dapo.config.load import did_you_mean, from_tree
from dapo.config.schema import SCHEMA_VERSION
from dapo.config.write import toml_value
from dapo.errors import ConfigError

BUCKETS = ("translated", "different", "no_counterpart", "machine", "unknown")


@dataclass(frozen=True)
class Unresolved:
    """A value that could not be told, with what stands for it and the names that are missing."""

    text: str
    names: tuple[str, ...]


def plain(value: Any) -> Any:
    """A single value that JSON and messages can show: what is not finite, huge or of another kind as text."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


@dataclass(frozen=True)
class Given:
    """What the files and words say, flat: key -> value, and remarks about the reading."""

    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass
class Account:
    """A translation in the making: each given key ends in exactly one bucket.

    Args:
        system: "verl" or "TRL", for messages.
        given: what was read.
        defaults: the system's own value of keys that are not given.
        own: keys of dapo that were given as words; they win over what is translated.
        recipe: keys of dapo with their values, and `provenance` where those come from.
        placed: (bucket, remark) of the keys of `given`.
        spelling: how a key of `given` was spelled, where that was otherwise.
        passed_over: (value, remark) of keys that another spelling of the same key won over.
    """

    system: str
    given: Given
    defaults: Mapping[str, Any]
    own: Mapping[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    placed: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    spelling: dict[str, str] = field(default_factory=dict)
    passed_over: dict[str, tuple[Any, str]] = field(default_factory=dict)

    # --- reading ---

    def has(self, key: str) -> bool:
        """Whether a file or word sets the key."""
        return key in self.given.values

    def value(self, key: str) -> Any:
        """The given value, else the system's default. Raises Refused where it can't be told."""
        found = self.given.values.get(key, self.defaults.get(key))
        if isinstance(found, Unresolved):
            raise Refused(
                f"{key} = {found.text}: {', '.join(found.names)} can't be told from what was read; add the word "
                f"{key}=VALUE after it"
            )
        return found

    def number(self, key: str) -> float | None:
        """The value as a finite number; None for null. Raises ConfigError."""
        found = self.value(key)
        if found is None:
            return None
        try:
            number = float(found) if not isinstance(found, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ConfigError(f"{key} = {_short(found)}: a number is wanted; correct it")
        return number

    def whole(self, key: str) -> int | None:
        """The value as a whole number below 2^63; None for null. Raises ConfigError."""
        number = self.number(key)
        if number is None:
            return None
        if not number.is_integer() or abs(number) >= 2**63:
            raise ConfigError(f"{key} = {_short(self.value(key))}: a whole number below 2^63 is wanted; correct it")
        found = self.value(key)
        return found if isinstance(found, int) else int(number)

    def count(self, key: str) -> int:
        """The value as a whole number of 1 or more. Raises ConfigError."""
        found = self.whole(key)
        if found is None or found < 1:
            raise ConfigError(f"{key} = {_short(self.value(key))}: a whole number of 1 or more is wanted; correct it")
        return found

    def flag(self, key: str) -> bool:
        """The value as true or false; null is false. Raises ConfigError."""
        found = self.value(key)
        words = {"true": True, "false": False, "1": True, "0": False, "none": False, "yes": True, "no": False}
        if str(found).lower() not in words:
            raise ConfigError(f"{key} = {_short(found)}: true or false is wanted; correct it")
        return words[str(found).lower()]

    def text(self, key: str) -> str:
        """The value as text; "" for null. Raises ConfigError for a list or table."""
        found = self.value(key)
        if isinstance(found, (list, dict, tuple)):
            raise ConfigError(f"{key} = {_short(found)}: one word is wanted; correct it")
        return "" if found is None else str(found)

    def steps_words(self) -> str:
        """How many steps the recipe has, for a source that counts epochs."""
        given = self.own.get("train.num_steps")
        return f"the recipe has {given} steps" if given else "set train.num_steps (now dapo's default, 100)"

    # --- writing ---

    def put(self, key: str, value: Any, source: str) -> None:
        """Sets a key of the recipe, and says which key of the source it comes from."""
        self.recipe[key] = "off" if value is None else value
        if self.has(source):
            self.provenance[key] = f"chosen: translated from {self.system}'s {source}"
            self.same(source)
        else:
            self.provenance[key] = f"chosen: {self.system}'s default of {source}"

    def same(self, *keys: str) -> None:
        """These keys are translated, or say what dapo does anyway."""
        for key in keys:
            self._place(key, "translated", "")

    def differs(self, key: str, how: str) -> None:
        """The key is translated, and dapo behaves differently; a note where the source leaves it at its default."""
        self._place(key, "different", how)

    def lacks(self, key: str, what: str) -> None:
        """dapo has nothing for this key."""
        self._place(key, "no_counterpart", what)

    def machine(self, *keys: str) -> None:
        """These keys are about parallelism, memory, logging or paths of the run."""
        for key in keys:
            self._place(key, "machine", "")

    def _place(self, key: str, bucket: str, text: str) -> None:
        if not self.has(key):
            if text:
                self.notes.append(f"{key} (not set, {self.system}'s default {_short(self.defaults.get(key))}): {text}")
            return
        weight = ("machine", "translated", "different", "no_counterpart")
        old, before = self.placed.get(key, ("machine", ""))
        new = max(old, bucket, key=weight.index)
        texts = [t for t in (before, text) if t]
        self.placed[key] = (new, "; ".join(dict.fromkeys(texts)))


@dataclass(frozen=True)
class Translation:
    """A recipe that loads, and where each key of the source went."""

    recipe: Tree
    buckets: dict[str, list[dict[str, Any]]]
    notes: list[str]

    @property
    def keys_read(self) -> int:
        """How many keys the source sets."""
        return sum(len(rows) for rows in self.buckets.values())

    def toml(self) -> str:
        """The recipe as TOML."""
        return to_toml(self.recipe)


class Refused(ConfigError):
    """The source's values make a recipe that dapo refuses; `translation` has the lists all the same."""

    def __init__(self, message: str, translation: Translation | None = None) -> None:
        super().__init__(message)
        self.translation = translation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.translation)


def finish(account: Account, known: Iterable[str], name: str) -> Translation:
    """The finished translation.

    Args:
        account: with every key that has a rule placed.
        known: the system's keys, for suggestions about the rest.
        name: of the recipe, where the source gives none.

    Raises:
        Refused: dapo refuses the recipe.
    """
    candidates = sorted(known)
    buckets: dict[str, list[dict[str, Any]]] = {bucket: [] for bucket in BUCKETS}
    for key, value in account.given.values.items():
        bucket, text = account.placed.get(key, ("unknown", f"not a key of {account.system} known here"))
        if bucket == "unknown":
            text += did_you_mean(key, candidates)
        shown = value.text if isinstance(value, Unresolved) else value
        buckets[bucket].append({"key": account.spelling.get(key, key), "value": shown, "how": text})
    for key, (value, text) in account.passed_over.items():
        buckets["machine"].append({"key": key, "value": value, "how": text})
    for key, value in account.own.items():
        account.recipe[key] = value
        account.provenance[key] = "chosen: given as a word"
        buckets["translated"].append({"key": key, "value": value, "how": "a key of dapo, taken as it is"})
    account.recipe.setdefault("name", name)
    account.recipe.setdefault("description", f"translated from a configuration of {account.system}")
    kept = {key: value for key, value in account.recipe.items() if value is not None}
    tree = _nest(kept, {key: text for key, text in account.provenance.items() if key in kept})
    translation = Translation(tree, buckets, [*account.given.notes, *dict.fromkeys(account.notes)])
    try:
        from_tree(tomllib.loads(to_toml(tree)))
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"the translated recipe can't be written as TOML: {error}", translation) from None
    except ConfigError as error:
        raise Refused(f"dapo refuses the translated recipe: {error.message}", translation) from None
    return translation


def _nest(flat: Mapping[str, Any], provenance: Mapping[str, str]) -> Tree:
    """Nested tables in the schema's order."""
    order = {key: place for place, key in enumerate(all_keys())}
    tree: Tree = {"schema": SCHEMA_VERSION}
    for key in sorted(flat, key=lambda k: order.get(k, len(order))):
        *path, last = key.split(".")
        table = tree
        for part in path:
            table = table.setdefault(part, {})
        table[last] = flat[key]
    if provenance:
        tree["provenance"] = dict(sorted(provenance.items(), key=lambda row: order.get(row[0], len(order))))
    return tree


def drop_defaults(account: Account) -> None:
    """Leaves out what the source does not set and dapo would do anyway."""
    blank: Tree = {"model": {"path": "m"}, "data": {"source": "d"}}
    usual = resolve(from_tree(blank))
    for key in list(account.recipe):
        value: Any = usual
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        given = "translated from" in account.provenance.get(key, "")
        ours = value if value is not None else "off"
        if not given and key in account.provenance and account.recipe[key] == ours:
            del account.recipe[key], account.provenance[key]


def to_toml(tree: Mapping[str, Any]) -> str:
    """A nested table as TOML; lists of tables are written inline.

    >>> print(to_toml({"schema": 1, "train": {"seed": 3, "betas": [0.9, 0.95]}}), end="")
    schema = 1
    <BLANKLINE>
    [train]
    seed = 3
    betas = [0.9, 0.95]
    """
    lines = _table(tree, "")
    return "\n".join(lines).strip("\n") + "\n"


def _table(tree: Mapping[str, Any], prefix: str) -> list[str]:
    plain = {k: v for k, v in tree.items() if not isinstance(v, dict) or (not prefix and k == "schema")}
    lines = [f"{_key(k)} = {toml_value(v)}" for k, v in plain.items()]
    if prefix and lines:
        lines = ["", f"[{prefix}]", *lines]
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += _table(value, f"{prefix}.{_key(key)}" if prefix else _key(key))
    return lines


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _short(value: Any) -> str:
    text = "null" if value is None else str(value) if isinstance(value, str) else _safe_repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer too long for Python to print
        return "a huge number"
