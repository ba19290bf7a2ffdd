"""A run on disk, finished or still going on. Loads no torch, but to export."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from dapo.config.load import from_run
from dapo.config.schema import Config
from dapo.errors import ConfigError, UserError
from dapo.run.directory import RunDirectory
from dapo.targets import BEST, find_checkpoint

Row = Mapping[str, Any]


class Run:
    """What a run directory holds.

    Args:
        path: the directory, or "latest" for the newest in runs/.

    Raises:
        UserError: it is no run directory.
    """

    def __init__(self, path: str | Path) -> None:
        self._directory = RunDirectory.open(str(path))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    @property
    def config(self) -> Config:
        """The configuration it was started, or last resumed, with."""
        tree = self._directory.read_json("config.resolved.json")
        if not isinstance(tree, dict):
            raise UserError(f"{self.path / 'config.resolved.json'}: not the configuration of a run; put it back")
        return from_run(tree)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A line for each finished step, and for the evaluation before the first (step 0). None: not a finite number.

        What each figure means: docs/metrics.md.
        """
        return self._directory.metrics()

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        """Every response of a step, with prompt, text, verdict, reward, advantage and whether its group was kept.

        Raises UserError where the step wrote none (log.rollouts_every).
        """
        return self._directory.rollouts(step)

    def tokens(self, step: int) -> list[dict[str, Any]]:
        """Some responses of a step token by token (log.token_rows): ids, texts, log-probs, ratios, clipping.

        Raises UserError where the step wrote none.
        """
        return self._directory.rollouts(step, "tokens")

    def export(self, path: str | Path, *, step: int | str | None = None, dtype: str = "float32") -> Path:
        """Writes a checkpoint's model as a plain Hugging Face folder; returns the folder.

        Args:
            path: a folder that is not there yet, or empty.
            step: of the checkpoint, or "best"; None: the newest.
            dtype: "float32" or "bfloat16", to which weights are rounded.

        Raises:
            ConfigError: the folder holds something, or dtype is another.
            UserError: there is no such checkpoint, or the folder can't be written.
        """
        from dapo.run.export import export_model

        target = Path(path)
        if dtype not in ("float32", "bfloat16"):
            raise ConfigError(f'dtype = {dtype!r}: use "float32" or "bfloat16"')
        if step is not None and step != BEST and (isinstance(step, bool) or not isinstance(step, Integral)):
            raise ConfigError(f'step = {step!r}: use the number of a step, or "best"')
        found = find_checkpoint(self._directory.checkpoints, step)
        if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
            raise ConfigError(f"{target}: exists and is not empty; name a new folder")
        export_model(found.model, target, dtype)
        return target

    def report(self, path: str | Path | None = None, *, rollouts_mb: float = 12.0) -> Path:
        """Writes one self-contained HTML page about the run; returns its path.

        Args:
            path: an .html file; None: report.html in the run directory.
            rollouts_mb: megabytes of responses to show, before they are packed: a sample.
        """
        from dapo.report.writing import write_report

        target = self.path / "report.html" if path is None else Path(path)
        write_report(target, [self.path], int(rollouts_mb * 2**20))
        return target
