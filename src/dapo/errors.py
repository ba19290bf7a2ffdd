"""Every error the project raises on purpose.

    DapoError                    exit 1   (a fault of ours if it ever surfaces bare)
    ├── UserError                exit 2   one clear line, no traceback
    │   ├── ConfigError                   a key, a value, a combination
    │   ├── DataError                     a file, a column, a row
    │   ├── ModelError                    weights, tokenizer, template, architecture
    │   └── RewardError                   a reward function that can't be used
    ├── Stopped                  exit 3   stopped on purpose, state saved, resumable
    │   ├── Interrupted                   a signal, at the next safe point
    │   ├── SaveFailed                    a checkpoint could not be written; the older ones stand
    │   ├── SamplingExhausted             dynamic sampling could not fill the batch
    │   ├── NonFiniteGradients            too many skipped updates in a row
    │   ├── EnginesLost                   rollout engines died more often than they may; the state is saved
    │   ├── LearnerLost                   a process of the learner died; the newest checkpoint stands
    │   └── SelfCheckFailed      exit 5   the run's own arithmetic does not hold; going on takes a decision
    ├── CheckFailed              exit 4   the command ran; what it checked is not as it should be
    └── EngineError              exit 1   a rollout engine broke its contract

Messages name the field (or the file and row) and the mend. All are picklable: they
carry one message and nothing else.
"""

from __future__ import annotations


class DapoError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UserError(DapoError):
    """The user can mend it; the command line prints one line and exits with 2."""

    exit_code = 2


class ConfigError(UserError, ValueError):
    """A configuration key or value that can't be used."""


class DataError(UserError, ValueError):
    """A data file, column or row that can't be used."""


class ModelError(UserError, ValueError):
    """A model, tokenizer or chat template that can't be used."""


class RewardError(UserError, ValueError):
    """A reward function that can't be loaded or that broke its signature."""


class Stopped(DapoError):
    """The run stopped on purpose after saving its state; it can be resumed."""

    exit_code = 3


class Interrupted(Stopped):
    """A signal asked the run to stop, and what it was doing was given up."""


class SaveFailed(Stopped):
    """A checkpoint could not be written; the run can be resumed from the newest that stands."""


class SamplingExhausted(Stopped):
    """Dynamic sampling reached its bound before the batch was full."""


class NonFiniteGradients(Stopped):
    """More updates in a row than allowed had non-finite gradients."""


class EnginesLost(Stopped):
    """Rollout engines died more often than `cluster.engine_restarts`, or there is no place left for them."""


class LearnerLost(Stopped):
    """A process of the learner died, its weights with it; the run can be resumed from its newest checkpoint."""


class SelfCheckFailed(Stopped):
    """A self-check with the setting "stop" found a fault; the state is saved, but going on alone would not mend it."""

    exit_code = 5


class CheckFailed(DapoError):
    """The command ran, but a check it made did not hold."""

    exit_code = 4


class EngineError(DapoError, RuntimeError):
    """A rollout engine broke its contract (unknown draw, missing weight, ...)."""
