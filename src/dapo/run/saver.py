"""Saving in the background: a snapshot in host memory, written by a thread while the next rollout goes on.

A learner that saves itself (`SavesItself`) is waited for instead.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from dapo.config.schema import CheckpointConfig
from dapo.errors import SaveFailed
from dapo.learner.base import SavesItself
from dapo.out_of_memory import ran_out
from dapo.run import checkpoint
from dapo.run.checkpoint import Content, Place
from dapo.run.directory import RunDirectory, resume_command
from dapo.run.manifest import MadeOf
from dapo.types import TrainState

if TYPE_CHECKING:
    from dapo.learner.base import Learner

logger = logging.getLogger(__name__)


class Saver:
    """Writes a run's checkpoints, one at a time.

    Args:
        run: where; its logs reach the disk before each checkpoint.
        settings: what is kept, and what a failure means.
        learner: whose weights and optimiser are saved.
        save_tokenizer: writes tokenizer files into a folder; called once, here.
        made_of: what the run is made of.
        say: tells a person.
        saved: where the checkpoint stands that the run goes on from.
        broken: checkpoints that were passed over, and so do not count among those to keep.

    Attributes:
        saved: where the newest checkpoint stands; None without one.
        failed: saves that failed and were gone on from, since `counted` was last asked.
    """

    def __init__(
        self,
        run: RunDirectory,
        settings: CheckpointConfig,
        learner: Learner,
        *,
        save_tokenizer: Callable[[Path], object],
        made_of: MadeOf,
        say: Callable[[str], None],
        saved: Place | None = None,
        broken: Collection[Path] = (),
    ) -> None:
        self._run, self._folder = run, run.checkpoints
        self._settings, self._learner, self._made_of, self._say = settings, learner, made_of, say
        self._broken = frozenset(broken)
        self._tokenizer = _files_of(save_tokenizer)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._writing: Place | None = None
        self.saved = saved
        self.failed = 0
        self._blocked_s = 0.0

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *error: object) -> None:
        """Whatever ends the run, a save under way is finished first."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error[0] is not None:
            logger.error("the last checkpoint could not be written either: %s", self._error)

    def save(self, state: TrainState, learning_rate: float) -> None:
        """Copies everything now and starts writing it. Raises SaveFailed for the save before, see `check`.

        A disk or memory that is too small for this one is told by `check` and `wait`.
        """
        self.wait()
        start = time.perf_counter()
        itself = isinstance(self._learner, SavesItself)
        try:
            content = Content(
                state=state,
                weights=None if itself else self._learner.host_weights(),
                optimizer=None if itself else self._learner.state_dict(),
                tokenizer=self._tokenizer,
                made_of=self._made_of,
                learning_rate=learning_rate,
            )
        except Exception as error:
            if not ran_out(error):
                raise
            self._writing, self._error = checkpoint.place_of(state), error  # told as what goes wrong in the thread is
            return
        self._writing = checkpoint.place_of(state)
        if itself:  # its ranks do one thing at a time
            self._write(content)
        else:
            self._thread = threading.Thread(target=self._write, args=(content,), name="dapo-save")
            self._thread.start()
        self._blocked_s += time.perf_counter() - start

    def ensure(self, state: TrainState, learning_rate: float) -> None:
        """Saves a state and waits until it stands, unless it stands already. Raises SaveFailed.

        A save before that failed is told and does not keep this one from being tried.
        """
        try:
            self.wait()
        except SaveFailed as error:
            self._say(f"{error}")
        if self.saved is None or self.saved < checkpoint.place_of(state):
            self.save(state, learning_rate)
            self.wait(final=True)

    def check(self) -> None:
        """Surfaces a failure of the background save. Raises SaveFailed, as `checkpoint.on_failure` says."""
        if self._writing is not None and (self._thread is None or not self._thread.is_alive()):
            self.wait()

    def wait(self, *, final: bool = False) -> None:
        """Waits for the save under way. Raises SaveFailed (always when `final`), or what was no disk's fault."""
        if self._writing is None:
            return
        start = time.perf_counter()
        if self._thread is not None:
            self._thread.join()
        self._blocked_s += time.perf_counter() - start
        error, self._thread, self._error = self._error, None, None
        place, self._writing = self._writing, None
        if error is None:
            self.saved = place
            return
        if not (isinstance(error, _disk_errors()) or ran_out(error)):
            raise error
        reason = f"out of memory ({str(error) or type(error).__name__})" if ran_out(error) else str(error)
        message = f"the checkpoint could not be written to {self._folder}: {reason}"
        logger.error("%s", message)
        if self._settings.on_failure == "stop" or final:
            raise SaveFailed(message + "; " + self._what_stands()) from error
        self.failed += 1
        self._say(f"{message}; going on without it (checkpoint.on_failure)")

    def counted(self) -> int:
        """Failed saves since the last call."""
        failed, self.failed = self.failed, 0
        return failed

    def tolerate(self, error: SaveFailed) -> None:
        """What else can't be written follows `checkpoint.on_failure` too: raises, or tells and counts."""
        if self._settings.on_failure == "stop":
            raise error
        self.failed += 1
        self._say(f"{error} (going on without it, checkpoint.on_failure)")

    def seconds(self) -> float:
        """For how long training had to wait, for copies and for the save before, since the last call."""
        seconds, self._blocked_s = self._blocked_s, 0.0
        return seconds

    def _what_stands(self) -> str:
        run = self._run.path
        if self.saved is None:
            return f"there is none yet; make room, then: {resume_command(run)}"
        stands = [path.name for path in checkpoint.folders(self._folder) if checkpoint.fault(path) is None]
        return f"{stands[-1] if stands else 'none'} stands; make room, then: {resume_command(run)}"

    def _write(self, content: Content) -> None:
        try:
            self._run.sync()
            self._folder.mkdir(exist_ok=True)
            path = checkpoint.write(self._folder, content, self._learner)
        except BaseException as error:
            self._error = error
            return
        try:
            checkpoint.prune(self._folder, path, self._settings, self._broken - {path})
        except OSError as error:
            logger.warning("an old checkpoint could not be removed: %s", error)


def _disk_errors() -> tuple[type[BaseException], ...]:
    """What a disk that refuses looks like; anything else is a fault of ours."""
    from safetensors import SafetensorError

    return OSError, SafetensorError


def _files_of(save: Callable[[Path], object]) -> dict[str, bytes]:
    """What a function writes into a folder: relative name -> content."""
    with tempfile.TemporaryDirectory(prefix="dapo-") as name:
        folder = Path(name)
        save(folder)
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
