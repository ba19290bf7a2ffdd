"""Every error the project raises on purpose.

    DapoError                    exit 1   (a fault of ours if it ever surfaces bare)
    ├── UserError                exit 2   one clear line, no traceback
    │   ├── ConfigError                   a key, a value, a combination
    │   │   └── VersionConflict           a file of another version of this program
    │   ├── DataError                     a file, a column, a row
    │   │   └── UngradableGold            a gold answer that nothing could be graded against
    │   ├── ModelError                    weights, tokenizer, template, architecture
    │   │   └── HubUnreachable            a hub that did not give what was asked for (a DataError too)
    │   ├── RewardError                   a reward function that can't be used
    │   ├── ResumeRefused                 a run that would not go on as what it began as
    │   └── OutOfMemory                   with nothing to be saved
    │       └── OutOfMemoryLoading
    ├── Stopped                  exit 3   stopped on purpose, state saved, resumable
    │   ├── Interrupted                   a signal, at the next safe point
    │   ├── SaveFailed                    a checkpoint could not be written; the older ones stand
    │   ├── SamplingExhausted             dynamic sampling could not fill the batch
    │   ├── NonFiniteGradients            too many skipped updates in a row
    │   ├── EnginesLost                   rollout engines died more often than they may; the state is saved
    │   ├── LearnerLost                   a process of the learner died; the newest checkpoint stands
    │   ├── RunOutOfMemory                in a run; by what it was doing:
    │   │   └── OutOfMemorySampling, OutOfMemoryLogprobs, OutOfMemoryUpdating, OutOfMemoryEvaluating
    │   └── SelfCheckFailed      exit 5   the run's own arithmetic does not hold; going on takes a decision
    ├── CheckFailed              exit 4   the command ran; what it checked is not as it should be
    └── EngineError              exit 1   a rollout engine broke its contract

Messages name the field (or the file and row) and the mend. All are picklable: they carry one message and nothing
else. Each kind has a `code`, which never changes. The command line prints it; `dapo explain CODE` and docs/errors.md
(made of this file, see `dapo.error_table`) say what it means and where to read on.
"""

from __future__ import annotations


class DapoError(Exception):
    """Base of all errors raised on purpose."""

    code = "E-DAPO"
    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UserError(DapoError):
    """The user can mend it; the command line prints one line and exits with 2."""

    code = "E-USER"
    exit_code = 2


class ConfigError(UserError, ValueError):
    """A configuration key or value that can't be used."""

    code = "E-CONFIG"


class DataError(UserError, ValueError):
    """A data file, column or row that can't be used."""

    code = "E-DATA"


class ModelError(UserError, ValueError):
    """A model, tokenizer or chat template that can't be used."""

    code = "E-MODEL"


class RewardError(UserError, ValueError):
    """A reward function that can't be loaded or that broke its signature."""

    code = "E-REWARD"


class UngradableGold(DataError):
    """A gold answer that responses can't be graded against; it would count every one of them wrong."""

    code = "E-GOLD"


class HubUnreachable(DataError, ModelError):
    """A hub did not give a model or a data set: no network, a timeout, no such name, or no permission."""

    code = "E-HUB"


class ResumeRefused(UserError):
    """A run can't go on as what it began as: its data, model, settings or checkpoints are not what they were."""

    code = "E-RESUME"


class VersionConflict(ConfigError):
    """A file was written for another version of this program."""

    code = "E-VERSION"


class OutOfMemory(UserError):
    """Memory ran out in a command that has no state to save."""

    code = "E-MEMORY"


class OutOfMemoryLoading(OutOfMemory):
    """Memory ran out while the model was loaded; nothing has been trained yet."""

    code = "E-MEMORY-LOADING"


class Stopped(DapoError):
    """The run stopped on purpose after saving its state; it can be resumed."""

    code = "E-STOPPED"
    exit_code = 3


class Interrupted(Stopped):
    """A signal asked the run to stop, and what it was doing was given up."""

    code = "E-INTERRUPTED"


class SaveFailed(Stopped):
    """A checkpoint could not be written; the run can be resumed from the newest that stands."""

    code = "E-SAVE"


class SamplingExhausted(Stopped):
    """Dynamic sampling reached its bound before the batch was full."""

    code = "E-EXHAUSTED"


class NonFiniteGradients(Stopped):
    """More updates in a row than allowed had non-finite gradients."""

    code = "E-NONFINITE"


class EnginesLost(Stopped):
    """Rollout engines died more often than `cluster.engine_restarts`, or there is no place left for them."""

    code = "E-ENGINES"


class LearnerLost(Stopped):
    """A process of the learner died, its weights with it; the run can be resumed from its newest checkpoint."""

    code = "E-LEARNER"


class RunOutOfMemory(Stopped):
    """Memory ran out in a run, outside of its large computations; the state from before is saved."""

    code = "E-MEMORY-RUN"


class OutOfMemorySampling(RunOutOfMemory):
    """Memory ran out while responses were sampled; the state from before is saved."""

    code = "E-MEMORY-SAMPLING"


class OutOfMemoryLogprobs(RunOutOfMemory):
    """Memory ran out while log-probabilities of the sampled tokens were computed; the state from before is saved."""

    code = "E-MEMORY-LOGPROBS"


class OutOfMemoryUpdating(RunOutOfMemory):
    """Memory ran out in an update; the state from before it is saved."""

    code = "E-MEMORY-UPDATE"


class OutOfMemoryEvaluating(RunOutOfMemory):
    """Memory ran out while the policy was evaluated; the state from before is saved."""

    code = "E-MEMORY-EVAL"


class SelfCheckFailed(Stopped):
    """A self-check with the setting "stop" found a fault; the state is saved, but going on alone would not mend it."""

    code = "E-SELFCHECK"
    exit_code = 5


class CheckFailed(DapoError):
    """The command ran, but a check it made did not hold."""

    code = "E-CHECK"
    exit_code = 4


class EngineError(DapoError, RuntimeError):
    """A rollout engine broke its contract (unknown draw, missing weight, ...)."""

    code = "E-ENGINE"
