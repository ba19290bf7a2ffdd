"""Dynamic sampling (section 3.2): fill a batch with informative groups, cut in draw order.

Draws are graded in draw order, and the batch is full at M, the draw at which the N-th informative
group stands. Finishing order never counts: short answers finish first, and taking the first to
finish would train on them more. How many draws may be in flight depends on draw counts and on the
grades before them, never on the clock; so what is kept is a function of the seed.

`rounds`     whole rounds of gen_prompts draws, until N groups stand (the paper's code).
`streaming`  a moving window of gen_prompts draws; what is in flight at M is cancelled unseen.

Past M, `discard` lets groups go; their prompts come back, under new draw indices where they were
cancelled. `carry` finishes the draws M < i <= M + K, K <= N * max_staleness, and the next step begins
with them, in order. A queue of K groups is used up in at most max_staleness steps, because a step
takes at least N of them; that is how admission bounds staleness.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from dapo.algorithm import informative, spread
from dapo.config.schema import Config, SamplingConfig
from dapo.difficulty import History, adaptive_size, resting
from dapo.errors import ConfigError, Interrupted, RewardError, SamplingExhausted
from dapo.flight import Flight
from dapo.grading import GroupGrader, permute_scores
from dapo.rollout.base import RolloutEngine
from dapo.spans import span
from dapo.types import UNFINISHED, Collected, FinishedDraw, Group, Prompt, SamplingParams, TrainState, Verdict

PromptSource = Callable[[int], Prompt | None]


def keep_mask(groups: Sequence[Group], rule: str) -> list[bool]:
    """Which groups carry a signal, by `sampling.filter`. Looks at raw correctness or unshaped rewards."""
    if rule == "off":
        return [True] * len(groups)
    return [_carries_signal(group, rule) for group in groups]


def _carries_signal(group: Group, rule: str) -> bool:
    if rule == "nonzero_std":
        return bool(spread(torch.tensor([[r.score.reward for r in group.rollouts]], dtype=torch.float64)))
    return bool(informative(torch.tensor([[r.score.correct is True for r in group.rollouts]])))


def block_size(sampling: SamplingConfig) -> int:
    """Draws of one round, or in flight at one time."""
    return sampling.gen_prompts or sampling.prompts_per_step


def draws_allowed(sampling: SamplingConfig, *, started: int, graded: int, kept: int) -> int:
    """How many draws of a filling may have been started, once `graded` are graded and `kept` informative.

    rounds: the next round when all that was started is graded. streaming: graded + gen_prompts. None is
    begun once max_rounds * gen_prompts draws (carried ones included) are started, or N groups stand.

    >>> s = SamplingConfig(schedule="streaming", prompts_per_step=2, gen_prompts=3, max_rounds=2)
    >>> [draws_allowed(s, started=3, graded=g, kept=k) for g, k in [(0, 0), (2, 1), (5, 1), (2, 2)]]
    [3, 5, 6, 3]
    """
    size, wanted = block_size(sampling), sampling.prompts_per_step
    limit = sampling.max_rounds * size
    if kept >= wanted:
        return started
    if sampling.schedule == "rounds":
        return started + size if graded == started < limit else started
    if sampling.filter == "off":
        limit = min(limit, wanted)
    return max(started, min(graded + size, limit))


def group_size(sampling: SamplingConfig, history: History, prompt: Prompt) -> int:
    """G; less for a prompt that was often right, where min_responses_per_prompt asks for that."""
    most, least = sampling.responses_per_prompt, sampling.min_responses_per_prompt
    if least is None:
        return most
    return adaptive_size(history.get(prompt.id), prompt.rating, least, most)


def check_errors(groups: Sequence[Group], config: Config) -> None:
    """Raises RewardError when more scores of the last round's worth of groups failed than may."""
    block = groups[-block_size(config.sampling) :]
    scores = [r.score for group in block for r in group.rollouts]
    errors = [score for score in scores if score.verdict is Verdict.ERROR]
    limit = config.reward.max_error_fraction
    if len(errors) > limit * len(scores):
        raise RewardError(
            f"{len(errors)} of {len(scores)} scores of a round failed, over reward.max_error_fraction = {limit:g}; "
            f"mend the reward function (log.txt holds all messages; the first: {errors[0].stage or 'no reason given'})"
        )


def why_short(groups: Sequence[Group], kept: int, ended: str, sampling: SamplingConfig) -> str:
    """Why a filling has too few groups. ended: what the stream of prompts says of its end, or ""."""
    right = sum(group.num_correct == len(group.rollouts) for group in groups)
    wrong = sum(group.num_correct == 0 for group in groups)
    judged = any(r.score.correct is not None for group in groups for r in group.rollouts) or not groups
    counts = f" ({right} all right, {wrong} all wrong)" if judged else ""
    limit = f"{sampling.max_rounds} rounds are the limit (sampling.max_rounds)"
    if sampling.schedule == "streaming":
        draws = sampling.max_rounds * block_size(sampling)
        limit = f"{draws} draws are the limit (sampling.max_rounds * gen_prompts)"
    return (
        f"dynamic sampling kept {kept} of {sampling.prompts_per_step} groups out of "
        f"{len(groups)} draws{counts}: {ended or limit}"
    )


def allowed_staleness(config: Config) -> int:
    """Policy versions by which a token may be behind the step that trains on it."""
    return max(config.sampling.max_staleness, config.pipeline.max_staleness)


def rollout_params(config: Config) -> SamplingParams:
    """How training rollouts are sampled: no top-p, the run's seed."""
    sampling = config.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_response_tokens,
        n=sampling.responses_per_prompt,
        seed=config.train.seed,
        stop=sampling.stop,
    )


class Collector:
    """Fills batches from an engine.

    Args:
        config: of the run.
        engine: samples draws.
        grader: grades them.
        prompt: the prompt at a place of the stream; None past the end of the data.
    """

    def __init__(self, config: Config, engine: RolloutEngine, grader: GroupGrader, prompt: PromptSource) -> None:
        self._config, self._engine, self._grader, self._prompt = config, engine, grader, prompt

    def collect(self, state: TrainState, stopped: Callable[[], bool] = lambda: False) -> Collected:
        """Groups for the step after a state: its carried groups first, then new draws.

        Args:
            state: gives carried groups, draw cursor, place in the stream and history.
            stopped: asked between polls; True gives the filling up.

        Raises:
            Interrupted: `stopped` said so; nothing is in flight any more.
            RewardError: more scores of a block failed than `reward.max_error_fraction`.
            EngineError: the engine failed more often than `engine.reruns`.
        """
        filling = _Filling(self._config, self._engine, self._grader, self._prompt, state)
        try:
            return filling.run(stopped)
        finally:
            filling.flight.cancel()


class _Filling:
    """One filling, from the first draw to the cut."""

    def __init__(
        self, config: Config, engine: RolloutEngine, grader: GroupGrader, prompt: PromptSource, state: TrainState
    ) -> None:
        self._config, self._grader, self._state = config, grader, state
        self.flight = Flight(engine, rollout_params(config), config.engine.reruns)
        self._places = Places(prompt, state, config.sampling)
        self._started = len(state.carried)
        self._prompts: list[Prompt] = []  # of new draws
        self._held: dict[int, FinishedDraw] = {}  # finished, waiting for lower draws to be graded
        self._block: list[Group] = []  # graded, of a round that is not complete
        self._groups: list[Group] = []
        self._kept: list[int] = []  # places in _groups
        self._rounds = 0
        self._grade_seconds = 0.0

    def run(self, stopped: Callable[[], bool]) -> Collected:
        start = time.perf_counter()
        for group in self._state.carried:
            if self._full():
                break
            self._take([group])
        taken_over = len(self._groups)
        while not self._done():
            self._start_draws()
            if not self.flight:
                break
            if stopped():
                raise Interrupted("sampling was given up before its batch was full")
            self._held.update((finished.draw, finished) for finished in self.flight.poll())
            self._grade_in_order()
        check_errors(self._groups, self._config)
        self._groups += self._state.carried[taken_over:]
        return self._collected(time.perf_counter() - start)

    # --- starting draws ---------------------------------------------------------------------------

    def _start_draws(self) -> None:
        before = self._started
        allowed = draws_allowed(
            self._config.sampling, started=self._started, graded=len(self._groups), kept=len(self._kept)
        )
        while self._started < allowed and (prompt := self._places.next()) is not None:
            self._prompts.append(prompt)
            self._started += 1
            size = group_size(self._config.sampling, self._state.history, prompt)
            self.flight.submit(self._state.next_draw + len(self._prompts) - 1, prompt, size)
        self._rounds += self._started > before

    # --- grading in draw order --------------------------------------------------------------------

    def _grade_in_order(self) -> None:
        """Grades what stands next in draw order; the window moves by one draw at a time."""
        while not self._done():
            number = len(self._groups) + len(self._block) - len(self._state.carried)
            finished = self._held.pop(self._state.next_draw + number, None)
            if finished is None:
                return
            start = time.perf_counter()
            with span("grading"):
                self._block.append(self._grader.group(finished, self._prompts[number]))
            self._grade_seconds += time.perf_counter() - start
            sampling = self._config.sampling
            if sampling.schedule == "streaming":
                self._take(self._block)
                self._start_draws()
            elif len(self._groups) + len(self._block) == self._started:
                if self._config.reward.placebo:
                    self._block = permute_scores(self._block, self._config.train.seed, self._block[0].draw)
                self._take(self._block)

    def _take(self, groups: list[Group]) -> None:
        """Looks at graded groups: which are kept, whether grading itself fails."""
        for group in groups:
            if keep_mask([group], self._config.sampling.filter)[0]:
                self._kept.append(len(self._groups))
            self._groups.append(group)
            if len(self._groups) % block_size(self._config.sampling) == 0:
                check_errors(self._groups, self._config)
        self._block = []

    def _full(self) -> bool:
        return len(self._kept) >= self._config.sampling.prompts_per_step

    def _cut(self) -> int:
        """M: groups up to the N-th kept one."""
        return self._kept[self._config.sampling.prompts_per_step - 1] + 1

    def _carried(self) -> int:
        """K: how many started draws past the cut open the next step."""
        sampling = self._config.sampling
        if sampling.surplus == "discard":
            return 0
        return min(self._started - self._cut(), sampling.prompts_per_step * sampling.max_staleness)

    def _done(self) -> bool:
        if not self._full():
            return False
        if self._config.sampling.schedule == "rounds":
            return max(len(self._groups), len(self._state.carried)) >= self._started
        return max(len(self._groups), len(self._state.carried)) >= self._cut() + self._carried()

    # --- the outcome ------------------------------------------------------------------------------

    def _collected(self, seconds: float) -> Collected:
        sampling, state = self._config.sampling, self._state
        wanted = sampling.prompts_per_step
        short = "" if self._full() else why_short(self._groups, len(self._kept), self._places.ended, sampling)
        cut = len(self._groups) if short else self._cut()
        streaming = sampling.schedule == "streaming"
        cancelled = len(self.flight) + len(self._held)
        self.flight.lost_tokens += sum(r.num_tokens for done in self._held.values() for r in done.responses)
        self.flight.cancel()
        new = len(self._groups) - len(state.carried)
        before = {name: state.unfinished.get(name, 0) for name in UNFINISHED}
        return Collected(
            kept=tuple(self._groups[place] for place in self._kept[:wanted]),
            groups=tuple(self._groups),
            cut=cut,
            carried=0 if short else self._carried(),
            carried_in=int(before["carried_in"]) if state.unfinished else len(state.carried),
            cancelled=cancelled,
            next_draw=state.next_draw + (sampling.max_rounds * block_size(sampling) if streaming else new),
            next_place=self._places.after(new),
            skipped=self._places.skipped(new) + int(before["skipped"]),
            failures=self.flight.failures + int(before["failures"]),
            lost_tokens=self.flight.lost_tokens + int(before["lost_tokens"]),
            rounds=self._rounds + int(before["rounds"]),
            rollout_seconds=seconds - self._grade_seconds + before["rollout_seconds"],
            grade_seconds=self._grade_seconds + before["grade_seconds"],
            short=short,
        )


class Places:
    """Prompts of new draws, in the order of the stream, without those that rest (curriculum)."""

    def __init__(self, prompt: PromptSource, state: TrainState, sampling: SamplingConfig) -> None:
        self._prompt, self._step = prompt, state.step + 1
        self._after, self._sampling = sampling.skip_solved_after, sampling
        self._history: History = state.history
        self._ends = [(state.next_place, 0)]  # behind each draw: (place, prompts skipped so far)
        self.ended = ""

    def look(self, state: TrainState) -> None:
        """Goes on by what a later state knows of the prompts."""
        self._step, self._history, self.ended = state.step + 1, state.history, ""

    def next(self) -> Prompt | None:
        """The next prompt, or None where the data end or all of them rest."""
        place, skipped = self._ends[-1]
        patience = max(1000, 10 * len(self._history))
        for ahead in range(patience):
            prompt = self._prompt(place + ahead)
            if prompt is None:
                self.ended = "the data ended"
                return None
            if not self._rests(prompt):
                self._ends.append((place + ahead + 1, skipped + ahead))
                return prompt
        self.ended = f"{patience} prompts in a row are being skipped as solved (sampling.skip_solved_after)"
        return None

    def _rests(self, prompt: Prompt) -> bool:
        if self._after is None:
            return False
        return resting(self._history.get(prompt.id), self._step, self._after, self._sampling.skip_solved_steps)

    def after(self, draws: int) -> int:
        """The place behind so many draws."""
        return self._ends[draws][0]

    def skipped(self, draws: int) -> int:
        """Prompts skipped before that place."""
        return self._ends[draws][1]


def check_filled(collected: Collected, config: Config) -> None:
    """Applies `sampling.on_exhausted` to a batch that is not full.

    Raises:
        SamplingExhausted: under "stop", and under "train_short" when nothing was kept.
        ConfigError: under "error".
    """
    rule = config.sampling.on_exhausted
    if not collected.short or (rule == "train_short" and collected.kept):
        return
    if rule == "error":
        raise ConfigError(collected.short + '; raise max_rounds, change the data, or set on_exhausted = "stop"')
    raise SamplingExhausted(collected.short + "; what was graded is kept; raise sampling.max_rounds or change the data")
