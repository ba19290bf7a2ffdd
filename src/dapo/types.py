"""The frozen data that flows through a run.

Legend: P prompts, G responses for each, B = P*G rows, T tokens of a row (prompt and
response, padded on the right), L tokens of one response.

Alignment (law 1): entry [b, t] of every token tensor concerns token t given the tokens
before it. Only `learner.packing` knows at which position a model predicts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from dapo.difficulty import History

Columns = Mapping[str, Any]
Equal = Callable[[Sequence[tuple[str, str]]], Sequence[bool]]  # pairs (a, b) of answers -> whether b answers a


class Finish(Enum):
    """Why a response ended."""

    STOP = "stop"  # an EOS token or a stop string; the last token is that EOS
    LENGTH = "length"  # the token limit, without EOS
    ABORT = "abort"  # the engine gave it up; its draw is run again whole


class Verdict(Enum):
    """What the grader found. Everything but CORRECT and GRADED counts as wrong."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # no answer found where the policy looks for one
    TIMEOUT = "timeout"
    ERROR = "error"
    GRADED = "graded"  # a real-valued reward without a notion of correctness


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One problem, tokenised once.

    `id` is a hash of what the model is asked; `problem` is the problem before any wording, as a person
    reads it; `columns` holds the row's other fields.
    `rating` is the pass rate in [0, 1] that came with the data, where it did.
    `grading` is what the problem's source says of how answers are judged (SourceRewardConfig.key); "": [reward].
    """

    id: str
    messages: tuple[Mapping[str, str], ...] | None
    text: str
    answer: str | None
    source: str
    token_ids: NDArray[np.int32]  # [prompt tokens]
    columns: Columns = field(default_factory=dict)
    rating: float | None = None
    problem: str = ""
    grading: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the n responses of one draw are sampled. temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int
    n: int
    seed: int
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One sampled response.

    token_ids: [L], EOS included when it stopped by one.
    generated: [L], False for tokens that a tool or template put in (never trained).
    engine_logprobs: [L], log-probability under the distribution it was sampled from, at the
        time it was sampled.
    token_versions: run lengths ((policy version, tokens), ...) that sum to L.
    text: what a server returned that gives no tokens (token_ids are -1 then, only their number means
        something, and engine_logprobs are NaN); None everywhere else.
    """

    token_ids: NDArray[np.int32]
    generated: NDArray[np.bool_]
    engine_logprobs: NDArray[np.float32]
    finish: Finish
    token_versions: tuple[tuple[int, int], ...]
    text: str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedDraw:
    """A draw that an engine has completed: its n responses in order of their index g."""

    draw: int
    responses: tuple[Response, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A graded response. `reward` is before shaping; `correct` is None for graded floats."""

    verdict: Verdict
    correct: bool | None
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    extracted: str | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A response, its text up to the first EOS, its score, its overlong penalty in [-factor, 0]."""

    response: Response
    text: str
    score: Score
    overlong: float = 0.0

    @property
    def shaped_reward(self) -> float:
        return self.score.reward + self.overlong


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The G rollouts of one draw of one prompt, known by the draw's own index (law 4)."""

    draw: int
    prompt: Prompt
    rollouts: tuple[Rollout, ...]

    @property
    def num_correct(self) -> int:
        return sum(rollout.score.correct is True for rollout in self.rollouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows for the learner, in any order. All tensors on the CPU.

    draw: i64 [B], the group of each row; rows of a draw share their prompt tokens.
    prompt_lengths, lengths: i64 [B]; tokens of the prompt, and of prompt + response.
    token_ids: i64 [B, T], padded on the right (padding is never read).
    loss_mask: bool [B, T]; generated response tokens up to and including the first EOS.
        Prompt, padding and everything after an EOS are out, and so are filtered rows.
    engine_logprobs: f32 [B, T], zero outside responses.
    old_logprobs: f32 [B, T] or None until the start of the step fixes them.
    advantages: f32 [B], or [B, T] where the tokens of a response have values of their own.
    row_weights: f64 [B]; the loss is sum over b, t of row_weights[b] * loss_mask[b, t] * loss[b, t].
    selected: bool [B, T] or None; the tokens that an entropy control picked for this mini-batch.
    response: i64 [B], the g of each row within its draw; correct: i8 [B], 1 right, 0 wrong, -1 not said;
        truncated: bool [B], ended by the token limit. For what is shown alone; None where nobody filled them in.
    """

    draw: Tensor
    prompt_lengths: Tensor
    lengths: Tensor
    token_ids: Tensor
    loss_mask: Tensor
    engine_logprobs: Tensor
    advantages: Tensor
    row_weights: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    selected: Tensor | None = None
    response: Tensor | None = None
    correct: Tensor | None = None
    truncated: Tensor | None = None

    @property
    def token_advantages(self) -> Tensor:
        """f32 [B, T], the advantage of each token."""
        if self.advantages.dim() == 2:
            return self.advantages
        return self.advantages.unsqueeze(1).expand(self.token_ids.shape)

    @property
    def num_rows(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def loss_tokens(self) -> Tensor:
        """i64 [B], loss tokens of each row."""
        return self.loss_mask.sum(dim=1)

    def take(self, rows: Any) -> Batch:
        """The rows at these indices (a list or an index tensor), in that order."""
        picked: dict[str, Any] = {}
        for f in fields(self):
            tensor = getattr(self, f.name)
            picked[f.name] = None if tensor is None else tensor[rows]
        return Batch(**picked)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one step did: metric name -> value."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A step whose batch is made: what is left of its updates.

    minibatches: still to be trained on, in order. updates: metrics of each update that is done.
    metrics: of sampling and of the batch.
    """

    minibatches: tuple[Batch, ...]
    updates: tuple[Mapping[str, float], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


# Of Collected: what a filling that goes on after it was exhausted starts from.
UNFINISHED = ("carried_in", "skipped", "failures", "lost_tokens", "rounds", "rollout_seconds", "grade_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The outcome of one filling.

    kept: the groups to train on, in draw order. groups: every graded group, in draw order.
    cut: M, how many of these the filling took. carried: how many after them open the next step; the
    rest is surplus. carried_in: how many came from the step before. cancelled: draws in flight at
    the cut. next_draw, next_place: where the next step starts. skipped: prompts left out by the
    curriculum. failures, lost_tokens: see Flight. short: why fewer than N were kept, or "".
    """

    kept: tuple[Group, ...]
    groups: tuple[Group, ...]
    cut: int
    next_draw: int
    next_place: int
    carried: int = 0
    carried_in: int = 0
    cancelled: int = 0
    skipped: int = 0
    failures: int = 0
    lost_tokens: int = 0
    rounds: int = 0
    rollout_seconds: float = 0.0
    grade_seconds: float = 0.0
    short: str = ""

    @property
    def taken(self) -> tuple[Group, ...]:
        """The groups up to the cut."""
        return self.groups[: self.cut]

    @property
    def left(self) -> tuple[Group, ...]:
        """The groups that open the next step."""
        return self.groups[self.cut : self.cut + self.carried]

    @property
    def whole(self) -> bool:
        """Whether this is a filling to its end, and not a part of one that is still in flight."""
        return bool(self.cut or self.short)

    @property
    def unfinished(self) -> dict[str, float]:
        """The account of a filling that was not finished, for TrainState."""
        return {name: getattr(self, name) for name in UNFINISHED}

    @property
    def surplus(self) -> tuple[Group, ...]:
        """Graded groups that nobody will use."""
        return self.groups[self.cut + self.carried :]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Where a run stands. Everything random is a function of this and the seed.

    step: rollout steps done. version: policy version (one per rollout step).
    next_draw: the draw index at which the next step starts. next_place: its place in the prompt stream.
    nonfinite_in_a_row: updates skipped since the last good one.
    carried: graded groups that the next step takes before it draws, in draw order.
    unfinished: the account so far of a filling that could not be finished (exhausted), whose draws are
        among the carried ones; empty otherwise. See UNFINISHED.
    pending: the updates that are left of step + 1, when it was stopped among them.
    ahead: what was sampled already for the step after this one (or after the pending one), where the engine
        goes on during updates: a whole filling, or with pipeline.swap = "in_flight" the part that is graded, its cut
        still 0.
    history: what earlier draws of each prompt showed. totals: the ledger since step 0.
    score: the evaluation after this step (accuracy, or mean reward), where there was one.
    """

    step: int = 0
    version: int = 0
    next_draw: int = 0
    next_place: int = 0
    nonfinite_in_a_row: int = 0
    unfinished: Mapping[str, float] = field(default_factory=dict)
    carried: tuple[Group, ...] = ()
    pending: Pending | None = None
    ahead: Collected | None = None
    history: History = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
