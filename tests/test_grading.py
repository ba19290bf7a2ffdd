"""Finished draws into groups: the text that is graded, the overlong penalty, the placebo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tiny
from dapo.config import load_config
from dapo.grading import GroupGrader, mean_or_nan, permute_scores
from dapo.reward import Scorer
from dapo.types import Finish, FinishedDraw, Group, Response, Rollout, Score, Verdict

EOS, OTHER_EOS = 9, 8


def response(tokens: Sequence[int], finish: Finish = Finish.STOP) -> Response:
    """A response of these tokens."""
    return Response(
        token_ids=np.asarray(tokens, np.int32),
        generated=np.ones(len(tokens), bool),
        engine_logprobs=np.zeros(len(tokens), np.float32),
        finish=finish,
        token_versions=((0, len(tokens)),),
    )


def grader(max_tokens: int = 20480, **reward: Any) -> GroupGrader:
    """A grader whose decoder writes letters: token 0 is a, 1 is b."""
    config = load_config(
        {"model.path": "m", "data.source": "d.jsonl", "sampling.max_response_tokens": max_tokens},
        {f"reward.{key}": value for key, value in reward.items()},
    )
    return GroupGrader(
        config, Scorer(config.reward).score, lambda ids: "".join("abcdefghij"[i] for i in ids), [EOS, OTHER_EOS]
    )


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([0, 1, 2], "abc"),
        ([0, 1, EOS], "ab"),
        ([0, EOS, 1, EOS], "a"),
        ([0, OTHER_EOS, 1, EOS], "a"),
        ([EOS, 0], ""),
        ([], ""),
    ],
)
def test_the_text_ends_before_the_first_eos(tokens: list[int], text: str) -> None:
    """R23: what a model says after any of its EOS tokens is neither decoded nor graded."""
    assert grader(overlong="none").text(response(tokens)) == text


def test_an_answer_after_the_eos_does_not_count() -> None:
    """R23, end to end with a real tokenizer: wrong, EOS, then the right answer."""
    tokenizer = tiny.tokenizer()
    config = load_config({"model.path": "m", "data.source": "d.jsonl"})
    graded = GroupGrader(
        config,
        Scorer(config.reward).score,
        lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),
        [tiny.EOS_ID],
    )
    encode = [tokenizer(t, add_special_tokens=False)["input_ids"] for t in ("ANSWER: 5", "ANSWER: 7")]
    wrong, right = (response([*a, tiny.EOS_ID, *b, tiny.EOS_ID]) for a, b in (encode, encode[::-1]))
    group = graded.group(FinishedDraw(draw=4, responses=(wrong, right)), tiny.prompt([1], answer="7"))
    assert [rollout.text for rollout in group.rollouts] == ["ANSWER: 5", "ANSWER: 7"]
    assert [rollout.score.verdict for rollout in group.rollouts] == [Verdict.WRONG, Verdict.CORRECT]
    assert (group.draw, group.prompt.id, group.num_correct) == (4, "p", 1)
    assert [rollout.response for rollout in group.rollouts] == [wrong, right]


def test_scores_belong_to_their_responses() -> None:
    """The scorer sees texts and token ids in order, and a scorer of another length is refused."""
    seen: list[Any] = []

    def score(prompt: Any, texts: Sequence[str], ids: Sequence[Sequence[int]]) -> list[Score]:
        seen.append((prompt.id, list(texts), [list(i) for i in ids]))
        return [Score(verdict=Verdict.GRADED, correct=None, reward=float(len(t))) for t in texts]

    config = load_config({"model.path": "m", "data.source": "d.jsonl"})
    made = GroupGrader(config, score, lambda ids: "x" * len(ids), [EOS])
    draw = FinishedDraw(draw=0, responses=tuple(response(t) for t in ([0, 1, EOS], [0], [])))
    assert [r.score.reward for r in made.group(draw, tiny.prompt([1])).rollouts] == [2.0, 1.0, 0.0]
    assert seen == [("p", ["xx", "x", ""], [[0, 1, EOS], [0], []])]
    short = GroupGrader(config, lambda *a: [], lambda ids: "", [EOS])
    with pytest.raises(ValueError, match="shorter"):
        short.group(draw, tiny.prompt([1]))


# Eq. 13 with Lmax 20480 and Lcache 4096: 0 up to 16384, then (16384 - len) / 4096.
GOLDENS = [(0, 0.0), (1, 0.0), (16384, 0.0), (16385, -1 / 4096), (17408, -0.25), (18432, -0.5), (20480, -1.0)]


@pytest.mark.parametrize("overlong", ["soft", "soft+filter"])
@pytest.mark.parametrize(("length", "penalty"), GOLDENS)
def test_soft_penalty(overlong: str, length: int, penalty: float) -> None:
    """O1: a function of the response's own length (its EOS counted), however it finished."""
    for finish in (Finish.STOP, Finish.LENGTH):
        made = grader(overlong=overlong).penalty(response([0] * length, finish))
        assert made == pytest.approx(penalty, abs=1e-7)


def test_soft_penalty_with_another_limit() -> None:
    """Lmax 16384, Lcache 4096: 14336 gives (12288 - 14336)/4096 = -.5, 13000 gives -712/4096; the factor multiplies."""
    assert grader(16384, overlong="soft").penalty(response([0] * 14336)) == -0.5
    assert grader(16384, overlong="soft").penalty(response([0] * 13000)) == pytest.approx(-712 / 4096)
    assert grader(16384, overlong="soft", overlong_factor=1.5).penalty(response([0] * 14336)) == -0.75


@pytest.mark.parametrize(
    ("overlong", "stopped", "truncated"), [("none", 0.0, 0.0), ("filter", 0.0, 0.0), ("hard", 0.0, -0.5)]
)
@pytest.mark.parametrize("length", [1, 9, 10])
def test_the_other_penalties(overlong: str, stopped: float, truncated: float, length: int) -> None:
    """none and filter penalise nothing; hard takes the factor off truncated responses alone, at any length."""
    made = grader(10, overlong=overlong, overlong_factor=0.5, overlong_buffer_tokens=4)
    assert made.penalty(response([0] * length, Finish.STOP)) == stopped
    assert made.penalty(response([0] * length, Finish.LENGTH)) == truncated


@pytest.mark.parametrize(("finish", "hard"), [(Finish.STOP, 0.0), (Finish.LENGTH, -1.0)])
def test_at_the_limit(finish: Finish, hard: float) -> None:
    """An EOS exactly at Lmax: STOP, and -1 in the buffer; not truncated for `hard`."""
    full = response([0] * 9 + [EOS], finish)
    assert grader(10, overlong="soft", overlong_buffer_tokens=4).penalty(full) == -1.0
    assert grader(10, overlong="hard").penalty(full) == hard


@pytest.mark.parametrize("prompt_tokens", [1, 500])
def test_the_prompt_is_never_counted(prompt_tokens: int) -> None:
    """O1: 8 tokens of 10 with a buffer of 4 give (6 - 8)/4 = -.5, whatever the prompt; the reward stays unshaped."""
    made = grader(10, overlong="soft", overlong_buffer_tokens=4)
    draw = FinishedDraw(draw=0, responses=(response([0] * 8),))
    (rollout,) = made.group(draw, tiny.prompt([1] * prompt_tokens)).rollouts
    assert (rollout.score.reward, rollout.overlong, rollout.shaped_reward) == (-1.0, -0.5, -1.5)


# --- the placebo ----------------------------------------------------------------------------------


def placebo_groups(count: int, size: int) -> list[Group]:
    """Groups whose every rollout has its own score and its own penalty."""
    return [
        Group(
            draw=draw,
            prompt=tiny.prompt([1], name=str(draw)),
            rollouts=tuple(
                Rollout(
                    response=response([0] * (g + 1)),
                    text=f"{draw}.{g}",
                    score=Score(verdict=Verdict.WRONG, correct=False, reward=float(draw * size + g)),
                    overlong=-g / 10,
                )
                for g in range(size)
            ),
        )
        for draw in range(count)
    ]


def dealt(groups: Sequence[Group]) -> list[float]:
    """Rewards in order."""
    return [rollout.score.reward for group in groups for rollout in group.rollouts]


def test_the_placebo_keeps_the_scores_and_loses_their_owners() -> None:
    """The same multiset of scores, dealt among all groups; responses, texts and penalties stay where they are."""
    groups = placebo_groups(6, 4)
    mixed = permute_scores(groups, seed=1, first_draw=0)
    assert Counter(dealt(mixed)) == Counter(dealt(groups))
    assert sum(a == b for a, b in zip(dealt(mixed), dealt(groups), strict=True)) < 8
    crossed = sum(int(r.score.reward) // 4 != g.draw for g in mixed for r in g.rollouts)
    assert crossed > 12  # 20 of 24 expected: among all responses, not inside groups
    for before, after in zip(groups, mixed, strict=True):
        assert (after.draw, after.prompt.id) == (before.draw, before.prompt.id)
        assert [(r.text, r.overlong) for r in after.rollouts] == [(r.text, r.overlong) for r in before.rollouts]


def test_the_placebo_is_a_function_of_seed_and_draw() -> None:
    """A resumed run deals alike; another round or seed does not."""
    groups = placebo_groups(6, 4)
    base = dealt(permute_scores(groups, 1, 8))
    assert base == dealt(permute_scores(groups, 1, 8))
    assert base != dealt(permute_scores(groups, 2, 8))
    assert base != dealt(permute_scores(groups, 1, 14))


def test_mean_or_nan() -> None:
    """Nothing has no mean; never a quiet 0."""
    assert mean_or_nan([True, False, False, False]) == 0.25
    assert np.isnan(mean_or_nan([]))
