"""Whether two runs used the same recipe, code, packages, data and model, by what their manifests say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dapo.errors import UserError
from dapo.run.directory import RunDirectory
from dapo.run.manifest import complete, config_changes

# The lines of a verification, each with the digests that decide it.
PARTS: Mapping[str, tuple[str, ...]] = {
    "recipe": ("recipe",),
    "code": ("code",),
    "lock": ("lock",),
    "data": ("training_data", "evaluation_data"),
    "model": ("starting_weights", "model_config"),
    "tokenizer": ("tokenizer", "eos_ids"),
    "template": ("template",),
    "functions": ("functions",),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One line: what it is about, whether both runs used the same, and how not."""

    name: str
    same: bool
    how: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """What two runs were made of, part by part, and resumes after which a run was not what it began as."""

    parts: tuple[Part, ...]
    resumed: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs and all was recorded."""
        return not self.resumed and all(part.same for part in self.parts)


def verify(one: RunDirectory, other: RunDirectory) -> Verification:
    """Holds two runs against each other. Raises UserError where a manifest or configuration can't be read."""
    runs = [(str(run.path), _table(run, "manifest.json"), _table(run, "config.resolved.json")) for run in (one, other)]
    parts = []
    for name, digests in PARTS.items():
        how = [f"{digest}: not recorded in {place}" for place, made, _ in runs for digest in _missing(made, digests)]
        if not how:
            how = list(_how(name, digests, runs))
        parts.append(Part(name, not how, tuple(dict.fromkeys(how))))
    resumed = dict.fromkeys(line for place, made, _ in runs for line in _resumes(place, made))
    return Verification(tuple(parts), tuple(resumed))


def _table(run: RunDirectory, name: str) -> dict[str, Any]:
    data = run.read_json(name)
    if not isinstance(data, dict):
        raise UserError(f"{run.path / name}: not what a run writes there; put it back")
    return data


def _inside(made: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of a manifest; empty where there is none."""
    found = made.get(name)
    return found if isinstance(found, Mapping) else {}


def _missing(made: Mapping[str, Any], digests: tuple[str, ...]) -> list[str]:
    return [name for name in digests if not isinstance(_inside(made, "digests").get(name), str)]


def _how(name: str, digests: tuple[str, ...], runs: list[tuple[str, Any, Any]]) -> Iterator[str]:
    """In what a part differs; nothing where it is the same."""
    (_, before, config), (_, after, other_config) = runs
    old, new = _inside(before, "digests"), _inside(after, "digests")
    changed = [digest for digest in digests if old[digest] != new[digest]]
    if name == "recipe":
        lines = config_changes(complete(config), complete(other_config))
        yield from lines
        if changed and not lines:
            yield "other values when the runs began"
    elif changed and name == "code":
        yield f"commit {before.get('code') or 'not known'} -> {after.get('code') or 'not known'}"
    elif changed and name == "lock":
        yield from _versions(_inside(before, "versions"), _inside(after, "versions"))
    else:
        for digest in changed:
            yield _described(digest, _inside(before, "described").get(digest), _inside(after, "described").get(digest))


def _described(digest: str, old: Any, new: Any) -> str:
    if old is None and new is None:
        return f"{digest}: not the same"
    return f"{digest}: {old} -> {new}" if old != new else f"{digest}: {old} in both, but not the same"


def _versions(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    for name in names:
        yield f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
    if not names:
        yield "packages beside those whose versions the manifest lists"


def _resumes(place: str, made: Mapping[str, Any]) -> Iterator[str]:
    """Resumes of a run that changed something: settings, data, code or packages."""
    entries = made.get("resumed")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, Mapping):
            continue
        listed = entry.get("changed")
        changed = [str(line) for line in listed] if isinstance(listed, list) else []
        changed += [
            f"other {name}"
            for name, field in (("code", "code"), ("lock", "versions"))
            if _other(made, entry, name, field)
        ]
        if changed:
            yield f"{place} at step {entry.get('step', '?')}: {'; '.join(changed)}"


def _other(made: Mapping[str, Any], entry: Mapping[str, Any], name: str, field: str) -> bool:
    """Whether a resume had other code or packages than the start; by digests where both wrote them down."""
    first, now = _inside(made, "digests").get(name), _inside(entry, "digests").get(name)
    return bool(first != now if first and now else made.get(field) != entry.get(field))
