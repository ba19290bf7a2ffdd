"""The section `checks`: what becomes of a run whose own arithmetic does not hold."""

from __future__ import annotations

from typing import Literal

from dapo.config.base import Section

Action = Literal["stop", "warn", "off"]


class ChecksConfig(Section):
    """Self-checks of every step (docs/checks.md). stop: save the state and stop, exit 5. warn: a line and a count
    (checks/findings). off: not looked at. Every finding is a line of checks.jsonl."""

    engine_gap: Action = "stop"
    """Engine and learner give the same tokens the same log-probs, to rounding."""
    ratio_one: Action = "stop"
    """A step's first update finds the probabilities that the step began with: its ratios are 1."""
    engine_weights: Action = "stop"
    """The engine decodes with the weights that the learner has handed over."""
    eos_mask: Action = "stop"
    """The loss mask of a response that ended by an EOS holds that one, and of any other holds none."""
    response_mask: Action = "stop"
    """The loss mask holds the generated response tokens up to the first EOS, all of them and no others."""
    filter: Action = "stop"
    """The groups that are trained on are the first N of those that sampling.filter keeps, counted again."""
    groups: Action = "stop"
    """G rows for each group, with one prompt; every group in one mini-batch."""
    advantages: Action = "stop"
    """Advantages are centred within their group, and not all zero where its rewards differ."""
    reduction: Action = "stop"
    """Each token's weight in the loss is what algorithm.reduction makes of the lengths."""
    trained_weights: Action = "stop"
    """An update moves what is trained, and nothing else."""
    learning_rate: Action = "stop"
    """No update runs at a learning rate of 0, but the first step's under train.warmup_from_zero."""
    finite: Action = "stop"
    """Log-probs, advantages and weights of what is trained on are finite numbers."""
    finite_updates: Action = "warn"
    """Loss and gradient are finite numbers. Such updates are skipped; train.max_nonfinite_updates stops the run."""
    double_bos: Action = "warn"
    """No prompt begins with two BOS tokens."""
