"""Before anything loads torch: one thread (two spinning pools on two cores slow each other), no network."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture
def settled() -> Iterator[None]:
    """For tests that measure time: what other tests left on the heap is not collected again and again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll of our engines waits for a draw, however slow the machine is; one test gives it no time."""
    for module in ("dapo.rollout.torch_engine", "dapo.rollout.vllm_engine", "dapo.cluster.engines"):
        if module in sys.modules:
            monkeypatch.setattr(f"{module}.POLL_SECONDS", 60.0)
