"""Dynamic sampling: cut in draw order, filtered on correctness, bounded, and accounted for to the token."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tiny
from dapo.config import Config, load_config
from dapo.data import PromptStream
from dapo.errors import ConfigError, EngineError, RewardError, SamplingExhausted, UserError
from dapo.grading import GroupGrader
from dapo.ledger import ledger
from dapo.reward import Scorer
from dapo.rollout.scripted import Order, Script, ScriptedEngine
from dapo.sampling import Collector, check_filled, keep_mask, rollout_params
from dapo.types import Collected, Finish, FinishedDraw, Group, Prompt, Rollout, Score, TrainState, Verdict

# Token 1 is "the answer is right", 2 "wrong", 3 "no answer", 0 padding words, 9 the EOS.
WORDS = {0: "", 1: "\nAnswer: 7", 2: "\nAnswer: 8", 3: "hm"}
EOS, GROUP = 9, 4


def decode(ids: Sequence[int]) -> str:
    """The text of a scripted response."""
    return "".join(WORDS[i] for i in ids)


def tokens(kind: str, length: int = 2) -> list[int]:
    """A response of `length` tokens that is right (R), wrong (W) or unparsed (U)."""
    return [0] * (length - 2) + [{"R": 1, "W": 2, "U": 3}[kind], EOS]


def config(**layer: Any) -> Config:
    """N = 2 groups of G = 4, no penalty."""
    base = {
        "model.path": "m",
        "data.source": "d.jsonl",
        "sampling.prompts_per_step": 2,
        "sampling.responses_per_prompt": GROUP,
        "sampling.max_response_tokens": 50,
        "train.updates_per_step": 1,
        "reward.overlong": "none",
        "reward.overlong_buffer_tokens": 10,
    }
    return load_config(base, {key.replace("__", "."): value for key, value in layer.items()})


def prompts(index: int) -> Prompt | None:
    """An endless source, one prompt per draw."""
    return tiny.prompt([1], name=f"p{index}")


def by_draw(plan: str, length: Callable[[int, int], int] = lambda draw, g: 2) -> Script:
    """Draw d's kind is the d-th letter: M mixed (first response right), R all right, W all wrong, U unparsed."""

    def script(draw: int, prompt: Prompt, g: int) -> list[int]:
        letter = plan[draw] if draw < len(plan) else plan[-1]
        kind = ("R" if g == 0 else "W") if letter == "M" else letter
        return tokens(kind, length(draw, g))

    return script


def collect(
    made: Config,
    script: Script,
    *,
    first: int = 0,
    order: Order = "fifo",
    source: Callable[[int], Prompt | None] = prompts,
    engine: Any = None,
    state: TrainState | None = None,
) -> Collected:
    """One filling."""
    grader = GroupGrader(made, Scorer(made.reward).score, decode, [EOS])
    collector = Collector(made, engine or ScriptedEngine(script, order=order), grader, source)
    got = collector.collect(state or TrainState(next_draw=first, next_place=first))
    check_filled(got, made)
    return got


def draws(groups: Sequence[Any]) -> list[int]:
    """Draw indices."""
    return [group.draw for group in groups]


# --- the cut --------------------------------------------------------------------------------------


def shuffled(seed: int) -> Order:
    """Finishing in an arbitrary but fixed order."""
    generator = random.Random(seed)
    return lambda waiting: generator.randrange(len(waiting))


@pytest.mark.parametrize("order", ["fifo", "lifo", "shortest", shuffled(1), shuffled(2)])
def test_the_cut_is_in_draw_order(order: Order) -> None:
    """Whatever finishes first, the same draws are kept; with the shortest first, later draws are shorter here."""
    made = config(sampling__gen_prompts=6)
    got = collect(made, by_draw("WMRMMM", lambda draw, g: 30 - 4 * draw), order=order)
    assert draws(got.kept) == [1, 3]
    assert draws(got.groups) == [0, 1, 2, 3, 4, 5]
    assert (got.cut, got.next_draw, got.rounds, got.short) == (4, 6, 1, "")
    assert [r.response.num_tokens for r in got.kept[1].rollouts] == [18] * GROUP


def test_whole_rounds_are_consumed() -> None:
    """D4: exactly N whole groups. The next step starts after the round; it does not see a draw twice."""
    made = config(sampling__gen_prompts=3)
    engine = ScriptedEngine(by_draw("WWMWMMMMM"))
    first = collect(made, by_draw(""), engine=engine)
    assert (draws(first.kept), first.rounds, first.next_draw, first.cut) == ([2, 4], 2, 6, 5)
    second = collect(made, by_draw(""), engine=engine, first=first.next_draw)
    assert (draws(second.kept), second.rounds, second.next_draw, second.cut) == ([6, 7], 1, 9, 2)
    assert engine.submitted == list(range(9))


def test_a_full_batch_asks_for_no_more() -> None:
    """No round starts once N groups stand; gen_prompts off means N."""
    engine = ScriptedEngine(by_draw("M"))
    assert collect(config(), by_draw(""), engine=engine).rounds == 1
    assert engine.submitted == [0, 1]


def test_the_prompt_is_that_of_the_draw() -> None:
    """Group and prompt stay together, over rounds and steps."""
    got = collect(config(sampling__gen_prompts=1), by_draw("WWWWWWWMWM"), first=5, order="lifo")
    assert [(group.draw, group.prompt.id) for group in got.kept] == [(7, "p7"), (9, "p9")]


def test_one_prompt_drawn_twice_makes_two_groups() -> None:
    """Law 4: a group is a draw."""
    stream = PromptStream([[tiny.prompt([1], name="only")]], seed=0)
    got = collect(config(), by_draw("M"), source=stream.prompt)
    assert [(group.draw, group.prompt.id, len(group.rollouts)) for group in got.kept] == [
        (0, "only", GROUP),
        (1, "only", GROUP),
    ]


def test_the_parameters_of_training_rollouts() -> None:
    """No top-p, the run's seed, G responses, the limit, the temperature and stop strings of the config."""
    seen: list[Any] = []

    class Recording(ScriptedEngine):
        def submit(self, draw: int, prompt: Prompt, params: Any) -> None:
            seen.append(params)
            super().submit(draw, prompt, params)

    made = config(train__seed=5, sampling__temperature=0.7, sampling__stop=["x"])
    collect(made, by_draw(""), engine=Recording(by_draw("M")))
    assert {(p.top_p, p.seed, p.n, p.max_new_tokens, p.temperature, p.stop) for p in seen} == {
        (1.0, 5, GROUP, 50, 0.7, ("x",))
    }


# --- the filter -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "kept"), [(0, False), (1, True), (2, True), (3, True), (4, False)])
def test_informative_groups(right: int, kept: bool) -> None:
    """Eq. 11: 0 < right < G."""
    made = config(sampling__prompts_per_step=1, sampling__on_exhausted="stop", sampling__max_rounds=1)

    def script(draw: int, prompt: Prompt, g: int) -> list[int]:
        return tokens("R" if g < right else "W")

    if kept:
        assert collect(made, script).kept[0].num_correct == right
    else:
        with pytest.raises(SamplingExhausted):
            collect(made, script)


def test_the_filter_looks_at_correctness_not_at_the_shaped_reward() -> None:
    """D1: four wrong answers, two of them in the overlong buffer: shaped rewards differ, and it is dropped."""
    made = config(sampling__gen_prompts=4, reward__overlong="soft")
    # Lmax 50, buffer 10: 45 tokens give (40 - 45)/10 = -.5.
    got = collect(made, by_draw("WRMM", lambda draw, g: 45 if g < 2 else 5))
    assert draws(got.kept) == [2, 3]
    assert [r.shaped_reward for r in got.groups[0].rollouts] == [-1.5, -1.5, -1.0, -1.0]
    assert [r.shaped_reward for r in got.groups[1].rollouts] == [0.5, 0.5, 1.0, 1.0]
    assert keep_mask(got.groups, "correctness") == keep_mask(got.groups, "nonzero_std") == [False, False, True, True]


def test_unparsed_counts_as_wrong() -> None:
    """Unparsed beside wrong is all wrong; unparsed beside right is informative."""

    def script(draw: int, prompt: Prompt, g: int) -> list[int]:
        return tokens("U" if g else "WR"[draw])

    got = collect(config(sampling__prompts_per_step=1, sampling__gen_prompts=2), script)
    assert draws(got.kept) == [1]


@pytest.mark.parametrize(("gap", "kept"), [(0.0, False), (5e-7, False), (2e-6, True), (1.0, True)])
def test_nonzero_std(tmp_path: Path, gap: float, kept: bool) -> None:
    """Graded floats: a spread over 1e-6 of the unshaped rewards, and float noise is none (L5)."""
    file = tmp_path / "graded.py"
    file.write_text(f"def f(completions, **kw):\n    return [0.95, 0.95, 0.95, 0.95 + {gap!r}]")
    made = config(
        sampling__filter="nonzero_std",
        sampling__max_rounds=1,
        sampling__on_exhausted="stop",
        reward__functions=[f"{file}:f"],
        reward__overlong="soft",
    )
    script = by_draw("W", lambda draw, g: 45 if g < 2 else 5)  # shaped rewards differ by .5 in every group
    if kept:
        got = collect(made, script)
        assert draws(got.kept) == [0, 1]
        assert all(r.score.correct is None for group in got.kept for r in group.rollouts)
    else:
        with pytest.raises(SamplingExhausted):
            collect(made, script)


def test_filter_off_keeps_everything() -> None:
    """No dynamic sampling: one round, each group kept as it comes."""
    got = collect(config(sampling__filter="off"), by_draw("WR"))
    assert (draws(got.kept), got.rounds, got.cut, got.short) == ([0, 1], 1, 2, "")


def test_filter_off_with_smaller_rounds_is_filled_or_refused() -> None:
    """gen_prompts below prompts_per_step must not make every step end as exhausted."""
    try:
        made = config(sampling__filter="off", sampling__gen_prompts=1)
    except ConfigError:
        return
    assert draws(collect(made, by_draw("WR")).kept) == [0, 1]


# --- exhaustion -----------------------------------------------------------------------------------

COUNTS = "dynamic sampling kept {} of 2 groups out of {} draws ({} all right, {} all wrong): "
LIMIT = "3 rounds are the limit (sampling.max_rounds)"


@pytest.mark.parametrize(
    ("on_exhausted", "plan", "error", "said"),
    [
        ("stop", "RWRWMW", SamplingExhausted, COUNTS.format(1, 6, 2, 3) + LIMIT),
        ("stop", "W", SamplingExhausted, COUNTS.format(0, 6, 0, 6) + LIMIT),
        ("error", "RWRWMW", UserError, COUNTS.format(1, 6, 2, 3) + LIMIT + "; raise max_rounds"),
        ("error", "R", UserError, COUNTS.format(0, 6, 6, 0) + LIMIT + "; raise max_rounds"),
        ("train_short", "RW", SamplingExhausted, COUNTS.format(0, 6, 1, 5) + LIMIT),  # nothing to train on
    ],
)
def test_exhaustion(on_exhausted: str, plan: str, error: type[Exception], said: str) -> None:
    """D2: bounded; the message says what was kept, what was dropped and why it ended."""
    made = config(sampling__on_exhausted=on_exhausted, sampling__max_rounds=3)
    engine = ScriptedEngine(by_draw(plan))
    with pytest.raises(error) as caught:
        collect(made, by_draw(""), engine=engine)
    assert str(caught.value).startswith(said)
    assert engine.submitted == list(range(6))
    assert caught.value.exit_code == (2 if error is UserError else 3)  # type: ignore[attr-defined]


def test_train_short() -> None:
    """What was kept is trained on, and the reason is told."""
    made = config(sampling__on_exhausted="train_short", sampling__max_rounds=3)
    got = collect(made, by_draw("RWRWMW"))
    assert (draws(got.kept), got.next_draw, got.rounds) == ([4], 6, 3)
    assert got.short == COUNTS.format(1, 6, 2, 3) + LIMIT
    assert ledger(got, TrainState(), made)["sampling/short"] == 1.0


@pytest.mark.parametrize(
    ("size", "plan", "on_exhausted", "kept"),
    [
        (3, "RMW", "train_short", [1]),  # ends inside the second round
        (4, "RMWW", "train_short", [1]),  # ends between two rounds
        (3, "RMM", "stop", [1, 2]),  # ends, but full
        (3, "RMW", "stop", None),
        (3, "RWW", "train_short", None),
        (0, "R", "stop", None),
    ],
)
def test_the_end_of_the_data(size: int, plan: str, on_exhausted: str, kept: list[int] | None) -> None:
    """D3: repeat = false. Accepted groups are kept under train_short; no draw past the end, no endless loop."""
    everything = [[tiny.prompt([1], name=f"p{i}") for i in range(max(size, 1))]]
    stream = PromptStream(everything, seed=0, shuffle=False, repeat=False)
    source = (lambda index: None) if size == 0 else stream.prompt
    engine = ScriptedEngine(by_draw(plan))
    made = config(sampling__on_exhausted=on_exhausted)
    if kept is None:
        with pytest.raises(SamplingExhausted, match=rf"out of {size} draws .*: the data ended"):
            collect(made, by_draw(""), engine=engine, source=source)
    else:
        got = collect(made, by_draw(""), engine=engine, source=source)
        assert (draws(got.kept), got.next_draw) == (kept, size)
        assert ("the data ended" in got.short) == (len(kept) < 2)
    assert engine.submitted == list(range(size))


# --- engines that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize("aborted", [{0}, {3}, {0, 1, 2, 3}])
def test_an_aborted_draw_is_run_again_whole(aborted: set[int]) -> None:
    """Failure goes with length: nothing of the first try is kept, nothing is skipped."""
    tries: dict[tuple[int, int], int] = {}

    def script(draw: int, prompt: Prompt, g: int) -> tuple[list[int], Finish]:
        attempt = tries[draw, g] = tries.get((draw, g), 0) + 1
        if draw == 1 and attempt < 3 and g in aborted:
            return [0], Finish.ABORT
        return tokens("R" if g == 0 else "W", 2 + attempt), Finish.STOP

    engine = ScriptedEngine(script)
    got = collect(config(sampling__gen_prompts=3), script, engine=engine)
    assert engine.submitted == [0, 1, 2, 1, 1]
    assert draws(got.kept) == [0, 1]
    assert [[r.response.num_tokens for r in group.rollouts] for group in got.groups] == [[3] * 4, [5] * 4, [3] * 4]
    assert {r.response.finish for group in got.groups for r in group.rollouts} == {Finish.STOP}


class Lying(ScriptedEngine):
    """An engine that answers with draws of its own."""

    def __init__(self, script: Script, answer: Callable[[int], int]) -> None:
        super().__init__(script)
        self.answer = answer

    def poll(self) -> list[FinishedDraw]:
        return [FinishedDraw(draw=self.answer(d.draw), responses=d.responses) for d in super().poll()]


@pytest.mark.parametrize("answer", [lambda d: d + 100, lambda d: -1, lambda d: 10], ids=["later", "negative", "twice"])
def test_an_engine_that_returns_an_unknown_draw(answer: Callable[[int], int]) -> None:
    """Never graded against somebody else's answer."""
    with pytest.raises(EngineError, match="which was not asked for"):
        collect(config(), by_draw(""), first=10, engine=Lying(by_draw("M"), answer))


@pytest.mark.parametrize(("failing", "stops"), [(0, False), (1, False), (2, True), (8, True)])
def test_too_many_reward_errors_stop_the_round(tmp_path: Path, failing: int, stops: bool) -> None:
    """Over max_error_fraction of a round's scores (not at it): one line that counts them; 1 of 8 is exactly 1/8."""
    file = tmp_path / "failing.py"
    file.write_text(
        "calls = []\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    calls.append(1)\n"
        f"    if len(calls) <= {failing}:\n        raise ValueError('boom')\n"
        "    return float(len(calls))"
    )
    made = config(
        sampling__filter="nonzero_std", reward__functions=[f"{file}:compute_score"], reward__max_error_fraction=1 / 8
    )
    scorer = Scorer(made.reward)

    def score(prompt: Prompt, texts: Sequence[str], ids: Sequence[Sequence[int]]) -> Any:
        return [scorer.score(prompt, [text], [i])[0] for text, i in zip(texts, ids, strict=True)]

    collector = Collector(made, ScriptedEngine(by_draw("M")), GroupGrader(made, score, decode, [EOS]), prompts)
    if stops:
        with pytest.raises(RewardError, match=rf"^{failing} of 8 scores of a round failed, over reward.max_error"):
            collector.collect(TrainState())
    else:
        verdicts = [r.score.verdict for group in collector.collect(TrainState()).groups for r in group.rollouts]
        assert verdicts.count(Verdict.ERROR) == failing


# --- the placebo ----------------------------------------------------------------------------------


def test_the_placebo_comes_before_the_filter() -> None:
    """Scores of a whole round are dealt again, then filtered: the round's right answers stay, their owners do not."""
    made = config(sampling__gen_prompts=8, reward__placebo=True)
    got = collect(made, by_draw("RRRRWWWW"))  # without the placebo nothing would be kept
    assert sum(group.num_correct for group in got.groups) == 16
    assert len(got.kept) == 2
    assert all(0 < group.num_correct < GROUP for group in got.kept)
    again = collect(made, by_draw("RRRRWWWW"), order="lifo")
    assert [g.num_correct for g in again.groups] == [g.num_correct for g in got.groups]


# --- the ledger -----------------------------------------------------------------------------------


def test_the_ledger_by_hand() -> None:
    """Draws R W M U M M | cut after the fifth: N = 2, M = 5, one surplus draw.

    Lengths: draw d's responses take d + 2 tokens each, the surplus one 45, truncated at 44.
      generated  4 * (2 + 3 + 4 + 5 + 6) + 4 * 44 = 80 + 176 = 256
      kept       4 * (4 + 6) = 40, wasted 216
      acceptance (2 - 1)/(5 - 1) = .25
      right      4 + 0 + 1 + 0 + 1 = 6 of 20; kept 2 of 8
      unparsed   4 of 20; all right 1 of 5; all wrong 2 of 5 (the unparsed one counts)
      kept mean length 5, dropped (2 + 3 + 5)/3; right (4 * 2 + 4 + 6)/6, wrong (80 - 18)/14
      spread     rewards 1, -1, -1, -1: sqrt(3)/2 of both mixed groups, 0 of the rest
      diversity  a group's right responses are one text, its wrong ones another: 1 1 2 1 2 answers, 3 3 2 3 2 repeats
      quarters   of 4 * (2 3 4 5 6 44) tokens: under 3, 4.5 and 6, and the rest: 8, 28, 20 and 200 of 256
    """
    made = config(sampling__gen_prompts=6, sampling__max_response_tokens=44)
    got = collect(made, by_draw("RWMUMM", lambda draw, g: draw + 2 if draw < 5 else 45))
    account = ledger(got, TrainState(), made)
    expected = {
        "sampling/draws": 5,
        "sampling/kept": 2,
        "sampling/surplus_draws": 1,
        "sampling/rounds": 1,
        "sampling/cancelled_draws": 0,
        "sampling/carried_in_draws": 0,
        "sampling/carried_draws": 0,
        "sampling/skipped_prompts": 0,
        "sampling/engine_failures": 0,
        "sampling/acceptance": 0.25,
        "sampling/all_right_fraction": 1 / 5,
        "sampling/all_wrong_fraction": 2 / 5,
        "sampling/all_right_draws": 1,
        "sampling/all_wrong_draws": 2,
        "sampled/unparsed_responses": 4,
        "sampled/timeout_responses": 0,
        "sampled/error_responses": 0,
        "sampling/short": 0,
        "tokens/generated": 256,
        "tokens/kept": 40,
        "tokens/wasted": 216,
        "tokens/lost": 0,
        "tokens/carried_in": 0,
        "tokens/carried": 0,
        "staleness/mean_versions": 0,
        "staleness/max_versions": 0,
        "difficulty/unseen_draws": 4,
        "difficulty/unseen_acceptance": 0.25,
        "response/kept_length_mean_tokens": 5,
        "response/dropped_length_mean_tokens": 10 / 3,
        "response/length_mean_tokens": 4,
        "response/length_max_tokens": 6,
        "response/truncated_fraction": 0,
        "response/overlong_penalty_mean": 0,
        "sampled/unparsed_fraction": 0.2,
        "sampled/timeout_fraction": 0,
        "sampled/error_fraction": 0,
        "sampled/accuracy": 6 / 20,
        "kept/accuracy": 2 / 8,
        "sampled/reward_mean": (6 - 14) / 20,
        "kept/reward_mean": (2 - 6) / 8,
        "sampled/shaped_reward_mean": (6 - 14) / 20,
        "kept/shaped_reward_mean": (2 - 6) / 8,
        "sampled/reward_grader_mean": (6 - 14) / 20,
        "kept/reward_grader_mean": (2 - 6) / 8,
        "response/length_p10_tokens": 2,
        "response/length_p50_tokens": 4,
        "response/length_p90_tokens": 6,
        "response/right_length_mean_tokens": 3,
        "response/wrong_length_mean_tokens": 62 / 14,
        "response/overlong_penalty_sum": 0,
        "sampled/reward_spread": 2 * math.sqrt(3) / 2 / 5,
        "kept/reward_spread": math.sqrt(3) / 2,
        "diversity/distinct_answers_mean": 7 / 5,
        "diversity/duplicate_responses_fraction": 13 / 20,
    }
    clock = {"tokens/per_s", *(key for key in account if key.startswith("time/"))}
    unknown = {"sampling/predicted_acceptance", "sampling/predictable_acceptance"}  # no earlier draws
    shift = {key for key in account if key.startswith("shift/")}
    found = {key: value for key, value in account.items() if key not in clock | unknown | shift}
    assert found == pytest.approx(expected)
    assert all(math.isnan(account[key]) for key in unknown)
    assert account["shift/total_variation"] == 0
    assert account["time/rollout_kept_s"] == pytest.approx(account["time/rollout_s"] * 40 / 256)
    assert account["time/rollout_wasted_s"] == pytest.approx(account["time/rollout_s"] * 216 / 256)
    assert account["tokens/per_s"] == pytest.approx(256 / account["time/rollout_s"])
    quarters = [account[f"time/rollout_length_q{number}_s"] / account["time/rollout_s"] for number in (1, 2, 3, 4)]
    assert quarters == pytest.approx([8 / 256, 28 / 256, 20 / 256, 200 / 256])
    assert min(account["time/rollout_s"], account["time/grade_s"]) > 0


def test_the_ledger_of_penalties() -> None:
    """M2: before and after the filter are different numbers. Lmax 50, buffer 10, two of four responses 45 long.

    W and M, kept M alone: penalty -.5 on half of each. Rewards W: -1 x4; M: +1, -1 x3.
    """
    made = config(sampling__prompts_per_step=1, sampling__gen_prompts=2, reward__overlong="soft")
    account = ledger(collect(made, by_draw("WM", lambda draw, g: 45 if g < 2 else 40)), TrainState(), made)
    assert account["response/overlong_penalty_mean"] == -0.25
    assert account["response/in_buffer_fraction"] == 0.5  # 40 is not yet inside
    assert (account["sampled/reward_mean"], account["kept/reward_mean"]) == (-0.75, -0.5)
    assert (account["sampled/shaped_reward_mean"], account["kept/shaped_reward_mean"]) == (-1.0, -0.75)
    assert math.isnan(account["sampling/acceptance"])  # N = 1: (1 - 1)/(M - 1) would be 0 whatever M


def test_the_ledger_of_truncation() -> None:
    """Longer than the limit: cut to it, LENGTH."""
    made = config(sampling__prompts_per_step=1)
    account = ledger(collect(made, by_draw("M", lambda draw, g: 2 if g == 0 else 60)), TrainState(), made)
    assert account["response/truncated_fraction"] == 0.75
    assert account["response/length_max_tokens"] == 50
    assert math.isnan(account["sampling/acceptance"])  # M = 1: nothing can be said
    assert math.isnan(account["response/dropped_length_mean_tokens"])


def test_graded_rewards_have_no_accuracy(tmp_path: Path) -> None:
    """Without correctness the ledger does not invent one; each part has its mean."""
    file = tmp_path / "graded.py"
    file.write_text("def f(completions, **kw):\n    return [0.0, 0.5, 1.0, 2.5]")
    made = config(sampling__filter="nonzero_std", reward__functions=[{"function": f"{file}:f", "weight": 2}])
    account = ledger(collect(made, by_draw("W")), TrainState(), made)
    assert not [key for key in account if key.endswith("/accuracy")]
    assert (account["sampled/reward_f_mean"], account["sampled/reward_mean"]) == (1.0, 2.0)


def test_acceptance_is_unbiased() -> None:
    """(N-1)/(M-1) has mean p = .3 under inverse sampling; N/M does not. 600 fillings, 4 errors."""
    made = config(sampling__prompts_per_step=3, sampling__gen_prompts=1, sampling__max_rounds=1000)
    generator = random.Random(0)
    sample = collect(config(sampling__prompts_per_step=1), by_draw("M")).groups[0]
    wrong = Group(
        draw=0,
        prompt=sample.prompt,
        rollouts=tuple(
            Rollout(response=r.response, text="", score=Score(verdict=Verdict.WRONG, correct=False, reward=-1.0))
            for r in sample.rollouts
        ),
    )
    values, biased = [], []
    for _ in range(600):
        groups, kept = [], []
        while len(kept) < 3:
            hit = generator.random() < 0.3
            base = sample if hit else wrong
            group = Group(draw=len(groups), prompt=base.prompt, rollouts=base.rollouts)
            groups.append(group)
            kept += [group] if hit else []
        got = Collected(
            kept=tuple(kept),
            groups=tuple(groups),
            next_draw=len(groups),
            next_place=len(groups),
            cut=len(groups),
            rounds=1,
            rollout_seconds=1.0,
            grade_seconds=1.0,
        )
        values.append(ledger(got, TrainState(), made)["sampling/acceptance"])
        biased.append(3 / len(groups))
    mean = sum(values) / len(values)
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) / (len(values) - 1))
    assert abs(mean - 0.3) < 4 * error
    assert sum(biased) / len(biased) - 0.3 > 4 * error


# --- the fake engine itself -----------------------------------------------------------------------


def test_the_scripted_engine_keeps_the_contract() -> None:
    """A public fake: one draw at a time, refuses doubles and endless waits, cancels, truncates, versions."""
    params = rollout_params(config())
    engine = ScriptedEngine(by_draw("M", lambda draw, g: 50 + (g == 1)), order="lifo")
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()
    engine.load_weights(3, [])
    for draw in (4, 5, 6):
        engine.submit(draw, tiny.prompt([1]), params)
    with pytest.raises(EngineError, match="draw 5 is already in flight"):
        engine.submit(5, tiny.prompt([1]), params)
    engine.cancel([6, 99])
    (finished,) = engine.poll()
    assert finished.draw == 5
    assert [r.finish for r in finished.responses] == [Finish.STOP, Finish.LENGTH, Finish.STOP, Finish.STOP]
    assert {r.num_tokens for r in finished.responses} == {50}
    assert {r.token_versions for r in finished.responses} == {((3, 50),)}
    engine.close()
    engine.close()
    with pytest.raises(EngineError):
        engine.poll()
