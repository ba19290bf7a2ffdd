"""dapo: reinforcement learning with verifiable rewards for language models, after DAPO.

`import dapo` loads no torch. What needs it is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dapo.config import Config, load_config
from dapo.errors import (
    CheckFailed,
    ConfigError,
    DapoError,
    DataError,
    EngineError,
    ModelError,
    RewardError,
    Stopped,
    UserError,
)
from dapo.types import Group, Prompt, Response, Rollout, SamplingParams, Score, StepReport, Verdict

if TYPE_CHECKING:
    from dapo.library.evaluation import evaluate
    from dapo.library.grade import grade
    from dapo.library.handle import Run
    from dapo.library.trainer import Trainer, train

__version__ = "0.1.0"

__all__ = [
    "CheckFailed",
    "Config",
    "ConfigError",
    "DapoError",
    "DataError",
    "EngineError",
    "Group",
    "ModelError",
    "Prompt",
    "Response",
    "RewardError",
    "Rollout",
    "Run",
    "SamplingParams",
    "Score",
    "StepReport",
    "Stopped",
    "Trainer",
    "UserError",
    "Verdict",
    "evaluate",
    "grade",
    "load_config",
    "train",
]

_LATER = {  # by the file that is loaded on first use
    "Run": "handle",
    "Trainer": "trainer",
    "evaluate": "evaluation",
    "grade": "grade",
    "train": "trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'dapo' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"dapo.library.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
