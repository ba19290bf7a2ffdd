"""dapo: reinforcement learning with verifiable rewards for language models, after DAPO.

`import dapo` loads no torch. What needs it is loaded on first use.
"""

from dapo.config import Config, load_config
from dapo.errors import DapoError
from dapo.types import Group, Prompt, Response, Rollout, SamplingParams, Score, StepReport, Verdict

__version__ = "0.1.0"

__all__ = [
    "Config",
    "DapoError",
    "Group",
    "Prompt",
    "Response",
    "Rollout",
    "SamplingParams",
    "Score",
    "StepReport",
    "Verdict",
    "load_config",
]
