"""How a run ends before its last step: the state is saved, and where it stands is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dapo.errors import (
    DapoError,
    EnginesLost,
    Interrupted,
    LearnerLost,
    NonFiniteGradients,
    SamplingExhausted,
    SaveFailed,
    SelfCheckFailed,
    Stopped,
)
from dapo.out_of_memory import in_run, ran_out
from dapo.parts import Parts, learning_rate
from dapo.run.directory import resume_command
from dapo.run.signals import StopRequest
from dapo.types import TrainState


@contextmanager
def saved_on_error(parts: Parts, state: TrainState) -> Iterator[None]:
    """Whatever goes wrong inside, the state from before it is saved; then the error goes on."""
    try:
        yield
    except (EnginesLost, Interrupted, SamplingExhausted, SelfCheckFailed) as error:
        parts.saver.ensure(state, learning_rate(state.step, parts.config))
        where = _where(parts, state)
        raise (error if error.message.endswith(where) else type(error)(f"{error}; {where}")) from None
    except LearnerLost:
        raise  # nothing is left to be saved
    except (Exception, SystemExit) as error:
        failure = _save(parts, state)
        if isinstance(error, SystemExit):
            raise DapoError("something that the run calls has called sys.exit; the state is saved") from error
        if ran_out(error):
            raise in_run(error, parts.config, failure or _where(parts, state)) from error
        raise


def _save(parts: Parts, state: TrainState) -> str | None:
    """Saves the state after an error; None, or why not, which is told here: the first error is the one to raise."""
    try:
        parts.saver.ensure(state, learning_rate(state.step, parts.config))
    except Exception as failure:
        if not (isinstance(failure, LearnerLost | SaveFailed) or ran_out(failure)):
            raise
        text = str(failure) or type(failure).__name__
        parts.view.say(text)
        return f"the state was not saved: {text}"
    return None


def leave_if_asked(parts: Parts, state: TrainState, stop: StopRequest) -> None:
    """After a signal: saves the state and raises Stopped."""
    if stop.requested:
        with saved_on_error(parts, state):
            state = parts.supply.settle(state)
        parts.saver.ensure(state, learning_rate(state.step, parts.config))
        raise Stopped(_where(parts, state))


def stop_if_diverged(parts: Parts, state: TrainState) -> None:
    """Saves the state and raises NonFiniteGradients after too many skipped updates in a row."""
    if state.nonfinite_in_a_row >= parts.config.train.max_nonfinite_updates:
        parts.saver.ensure(state, learning_rate(state.step, parts.config))
        raise NonFiniteGradients(
            f"{state.nonfinite_in_a_row} updates in a row had non-finite gradients "
            "(train.max_nonfinite_updates); lower train.learning_rate or set algorithm.log_ratio_clamp; "
            + _where(parts, state)
        )


def _where(parts: Parts, state: TrainState) -> str:
    within = f", {len(state.pending.updates)} updates into step {state.step + 1}" if state.pending is not None else ""
    return f"stopped after step {state.step}{within}; go on with: {resume_command(parts.run.path)}"
