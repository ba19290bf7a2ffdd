"""Checkpoints: a directory each, written aside, synced, verified, renamed.

checkpoints/step_000050/          after step 50
checkpoints/step_000050-d000012/  step 51 could not be filled: the 12 draws it has are kept
checkpoints/step_000050-u000003/  in step 51, after 3 of its updates
    model/                  a plain Hugging Face folder (float32) with tokenizer and chat template
    optimizer.safetensors   what else `Learner.state_dict` gives: moments, adapters
    optimizer/              the same in parts, of a learner with several ranks (see `learner.stored`)
    state.json              counters, cursors, schedule, totals, digests
    history.json            what earlier draws of each prompt showed
    carried.*, pending.*    groups for the next step; mini-batches left of this one (only where there are any)
    ahead.*                 what was sampled of the next step already (pipeline.max_staleness)
    manifest.json           size and sha256 of every file, and of itself; written last

A checkpoint whose files are not what its manifest says, to the byte, is passed over. The newest is
found by looking, so there is no pointer that could dangle.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.config.schema import CheckpointConfig
from dapo.difficulty import PromptRecord
from dapo.errors import ResumeRefused, UserError, VersionConflict
from dapo.files import sha256, sync_directory, sync_tree
from dapo.learner.base import SavesItself
from dapo.run import freeze
from dapo.run.manifest import MadeOf
from dapo.types import Group, TrainState

if TYPE_CHECKING:
    from torch import Tensor

    from dapo.learner.base import Learner

logger = logging.getLogger(__name__)

FORMAT = 2
COUNTERS = ("step", "version", "next_draw", "next_place", "nonfinite_in_a_row")
NAME = re.compile(r"step_(\d{6,})(?:-([du])(\d{6,}))?")
RECORD = tuple(field.name for field in fields(PromptRecord))
Place = tuple[int, str, int]  # step, kind ("" < "d" < "u"), how far


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk.

    made_of: what the run was made of when it was written, see `manifest.MadeOf`. broken, passed_over: newer
    ones, and lines with their faults.
    """

    path: Path
    state: TrainState
    made_of: MadeOf
    broken: tuple[Path, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def model(self) -> Path:
        return self.path / "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What goes into a checkpoint, in host memory, so that a thread can write it while training goes on.

    weights, optimizer: None of a learner that writes them itself (`SavesItself`), while training waits.
    """

    state: TrainState
    weights: Mapping[str, Tensor] | None
    optimizer: Mapping[str, Tensor] | None
    tokenizer: Mapping[str, bytes]
    made_of: MadeOf
    learning_rate: float


# --- names ----------------------------------------------------------------------------------------


def place_of(state: TrainState) -> Place:
    """Where in a run a state stands; later states are larger."""
    if state.pending is not None:
        return state.step, "u", len(state.pending.updates)
    if state.unfinished:
        return state.step, "d", len(state.carried)
    return state.step, "", 0


def name_of(state: TrainState) -> str:
    """The folder's name."""
    step, kind, count = place_of(state)
    return f"step_{step:06d}" + (f"-{kind}{count:06d}" if kind else "")


def _place(path: Path) -> Place | None:
    found = NAME.fullmatch(path.name)
    return None if found is None else (int(found[1]), found[2] or "", int(found[3] or 0))


def folders(folder: Path) -> list[Path]:
    """Everything named like a checkpoint, oldest first."""
    places = {path: place for path in folder.glob("step_*") if path.is_dir() and (place := _place(path))}
    return sorted(places, key=lambda path: places[path])


# --- writing --------------------------------------------------------------------------------------


def write(folder: Path, content: Content, learner: Learner) -> Path:
    """Writes a checkpoint; nothing is there under its name before it is complete and verified.

    Raises OSError (or what safetensors raises) when it can't be written; the folder is then as before.
    """
    target = folder / name_of(content.state)
    aside = folder / f".{target.name}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        (aside / "model").mkdir(parents=True)
        _write_files(aside, content, learner)
        (aside / "manifest.json").write_text(_manifest(aside), encoding="utf-8")
        sync_tree(aside)
        if reason := fault(aside) or _difference(aside, content):
            raise OSError(f"what was read back is not what was written: {reason}")
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    if target.is_dir() and not target.is_symlink():  # one that was passed over
        shutil.rmtree(target)
    aside.rename(target)
    sync_directory(folder)
    return target


def _write_files(aside: Path, content: Content, learner: Learner) -> None:
    state = content.state
    for name, data in content.tokenizer.items():
        (aside / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (aside / "model" / name).write_bytes(data)
    if content.weights is None or content.optimizer is None:
        assert isinstance(learner, SavesItself)
        learner.write_state(aside)
    else:
        learner.save_hf(aside / "model", content.weights)
        _save_tensors(aside / "optimizer.safetensors", content.optimizer)
    _save_json(
        aside / "state.json",
        {"format": FORMAT}
        | {name: getattr(state, name) for name in COUNTERS}
        | {
            "scheduler": {"rollout_steps": state.step, "learning_rate": content.learning_rate},
            "score": state.score,
            "unfinished": freeze.numbers(state.unfinished),
            "totals": freeze.numbers(state.totals),
            "digests": dict(content.made_of.digests),
            "described": dict(content.made_of.described),
        },
    )
    records = state.history.items()
    _save_json(aside / "history.json", {key: [getattr(record, name) for name in RECORD] for key, record in records})
    if state.carried:
        tensors, data = freeze.freeze_groups(state.carried)
        _save_tensors(aside / "carried.safetensors", tensors)
        _save_json(aside / "carried.json", data)
    if state.ahead is not None:
        tensors, data = freeze.freeze_ahead(state.ahead)
        _save_tensors(aside / "ahead.safetensors", tensors)
        _save_json(aside / "ahead.json", data)
    if state.pending is not None:
        tensors, data = freeze.freeze_pending(state.pending)
        _save_tensors(aside / "pending.safetensors", tensors)
        _save_json(aside / "pending.json", data)


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def _save_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, allow_nan=False) + "\n", encoding="utf-8")


def _manifest(folder: Path) -> str:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return manifest_text({str(f.relative_to(folder)): {"size": f.stat().st_size, "sha256": sha256(f)} for f in files})


def manifest_text(files: Mapping[str, Any]) -> str:
    """The one spelling of a manifest: `files`, then the sha256 of their JSON."""
    own = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    return json.dumps({"files": files, "sha256": own}, indent=2) + "\n"


def _difference(aside: Path, content: Content) -> str | None:
    """The first tensor on disk that is not bit for bit the one in memory."""
    from safetensors import safe_open

    def same(one: Tensor, other: Tensor) -> bool:
        import torch

        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(one.flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8))

    if content.weights is None or content.optimizer is None:
        return None  # the learner has compared them
    model = sorted((aside / "model").glob("*.safetensors"))
    for wanted, files in ((content.optimizer, [aside / "optimizer.safetensors"]), (content.weights, model)):
        found: set[int] = set()
        for file in files:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    if name in wanted and not same(opened.get_tensor(name), wanted[name]):
                        return f"{file.name}: {name}"
                    found.add(wanted[name].data_ptr() if name in wanted else 0)
        missing = [name for name, tensor in wanted.items() if tensor.numel() and tensor.data_ptr() not in found]
        if missing:  # a tied weight is written once
            return f"{missing[0]} was not written"
    return None


def sweep(folder: Path) -> None:
    """Removes what a killed save left half written."""
    for path in folder.glob(".step_*.tmp"):
        shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path, newest: Path, settings: CheckpointConfig, broken: Collection[Path] = ()) -> None:
    """Removes what need not be kept, once a new checkpoint stands.

    Whole steps count: the last keep_last, each keep_every, the keep_best best. A state within a step stays
    only while it is the newest. What was passed over as broken does not count; what is named later than the
    new one was passed over, and stays.
    """
    there = folders(folder)
    there = there[: there.index(newest) + 1]
    whole = [path for path in there if _place(path)[1] == "" and path not in broken]  # type: ignore[index]
    kept = {newest, *whole[-settings.keep_last :]}
    if settings.keep_every is not None:
        kept |= {path for path in whole if _place(path)[0] % settings.keep_every == 0}  # type: ignore[index]
    if settings.keep_best:
        scores = {path: score for path in whole if (score := _score(path)) is not None}
        kept |= set(sorted(scores, key=lambda path: scores[path])[-settings.keep_best :])
    for path in there:
        if path not in kept:
            shutil.rmtree(path)


def _score(path: Path) -> float | None:
    try:
        score = json.loads((path / "state.json").read_text(encoding="utf-8"))["score"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(score) if isinstance(score, (int, float)) else None


# --- reading --------------------------------------------------------------------------------------


def fault(path: Path) -> str | None:
    """Why a checkpoint can't be used, or None."""
    try:
        text = (path / "manifest.json").read_text(encoding="utf-8")
        data = json.loads(text)
        if isinstance(data, dict) and data and all(map(_is_entry, data.values())):
            return f"it is of format 1, and this version reads {FORMAT}"
        files = data["files"]
        sound = manifest_text(files) == text and all(map(_is_entry, files.values()))
    except FileNotFoundError:
        return "it has no manifest.json (not finished)"
    except OSError as error:
        return f"manifest.json can't be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "manifest.json is damaged"
    if not sound:
        return "manifest.json is damaged"
    for name, entry in files.items():
        file = path / name
        try:
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != entry["size"] or sha256(file) != entry["sha256"]:
                return f"{name} is not what the manifest says"
        except OSError as error:
            return f"{name} can't be read: {error.strerror}"
    extra = {str(file.relative_to(path)) for file in path.rglob("*.safetensors")} - files.keys()
    return f"{min(extra)} is not in the manifest" if extra else None


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and {"size", "sha256"} <= entry.keys()


def find(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint; None where there is none of any kind. ResumeRefused: all are broken."""
    passed_over: dict[Path, str] = {}
    for path in reversed(folders(folder)):
        if reason := fault(path):
            passed_over[path] = f"passing over {path}: {reason}"
            continue
        return replace(_read(path), broken=tuple(passed_over), passed_over=tuple(passed_over.values()))
    if passed_over:
        raise ResumeRefused(f"{folder}: no complete checkpoint; {'; '.join(passed_over.values())}")
    return None


def newest(folder: Path) -> Checkpoint:
    """The newest complete checkpoint; warns of those it passed over and why. Raises UserError without one."""
    found = find(folder)
    if found is None:
        raise UserError(f"{folder}: no complete checkpoint")
    for line in found.passed_over:
        logger.warning("%s", line)
    return found


def at_step(folder: Path, step: int) -> Checkpoint:
    """The checkpoint after a step. Raises UserError."""
    path = folder / f"step_{step:06d}"
    if not path.is_dir():
        whole = [place[0] for p in folders(folder) if (place := _place(p)) and not place[1]]
        steps = ", ".join(map(str, whole)) or "none"
        raise UserError(f"{folder}: no checkpoint of step {step}; there are: {steps}")
    if reason := fault(path):
        raise UserError(f"{path}: {reason}")
    return _read(path)


def best(folder: Path) -> Checkpoint:
    """The sound checkpoint with the highest score (`checkpoint.best_metric`), of equals the newest. UserError: none."""
    scored = [(score, path) for path in folders(folder) if (score := _score(path)) is not None]
    for _, path in sorted(scored, key=lambda one: (one[0], _place(one[1]) or (0, "")), reverse=True):
        if fault(path) is None:
            return _read(path)
    raise UserError(f"{folder}: no checkpoint was evaluated; set checkpoint.every and eval.every so that they meet")


def _read(path: Path) -> Checkpoint:
    from safetensors.torch import load_file

    def read_json(name: str) -> Any:
        return json.loads((path / name).read_text(encoding="utf-8"))

    data = read_json("state.json")
    if data.get("format") != FORMAT:
        raise VersionConflict(
            f"{path}: written in format {data.get('format', 1)}, and this version reads {FORMAT}; "
            "go on with the version that wrote it (the run's manifest.json names it)"
        )
    carried: tuple[Group, ...] = ()
    pending = ahead = None
    if (path / "ahead.json").is_file():
        ahead = freeze.thaw_ahead(load_file(path / "ahead.safetensors"), read_json("ahead.json"))
    if (path / "carried.json").is_file():
        carried = freeze.thaw_groups(load_file(path / "carried.safetensors"), read_json("carried.json"))
    if (path / "pending.json").is_file():
        pending = freeze.thaw_pending(load_file(path / "pending.safetensors"), read_json("pending.json"))
    state = TrainState(
        **{name: data[name] for name in COUNTERS},
        carried=carried,
        pending=pending,
        ahead=ahead,
        history={key: PromptRecord(**dict(zip(RECORD, row, strict=True))) for key, row in _history(path).items()},
        unfinished=freeze.floats(data["unfinished"]),
        totals=freeze.floats(data["totals"]),
        score=data["score"],
    )
    return Checkpoint(path, state, MadeOf(data["digests"], data["described"]))


def _history(path: Path) -> dict[str, list[int]]:
    return json.loads((path / "history.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def restore(checkpoint: Checkpoint, learner: Learner) -> None:
    """Puts weights and optimiser state back into a learner."""
    from dapo.learner.stored import state_files

    if isinstance(learner, SavesItself):
        learner.read_state(checkpoint.path)
        return
    with state_files(checkpoint.path) as files:
        state = {name: files.whole(name) for name in files.names()}
    learner.restore(checkpoint.model, state)
