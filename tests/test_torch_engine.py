"""The embedded engine against plain forward passes, transformers' generate, and counts of its own passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch

from dapo.errors import EngineError
from dapo.rng import Purpose, uniform
from dapo.rollout.torch_engine import TorchEngine
from dapo.types import Finish, Response, SamplingParams
from helpers_engine import (
    SIZE,
    Forward,
    Responses,
    cached_logits,
    collect,
    counting_model,
    ids,
    log_softmax,
    params,
    plain_logits,
    watch,
)
from tiny import EOS_ID, model, prompt

# Two routes through one float32 model (batched, cached, padded; and one plain pass) differ by rounding
# alone: logits of magnitude 10, a few dozen operations deep, 2^-24 each. Measured: 1.2e-5.
LOGPROB_BOUND = 5e-5
HEADS = [(1, False), (2, True), (2, False), (4, True)]  # key-value heads of 4; is the output the embedding?
NEVER: tuple[int, ...] = ()  # no EOS: lengths are those asked for

Job = tuple[Sequence[int], SamplingParams]


def make(
    policy: Any, *, eos: Sequence[int] = (EOS_ID,), slots: int = 8, max_tokens: int = 160, decode: Any = None
) -> TorchEngine:
    """An engine with a test's defaults."""
    return TorchEngine(policy, eos_ids=eos, slots=slots, max_tokens=max_tokens, decode=decode)


def run(engine: TorchEngine, jobs: dict[int, Job]) -> Responses:
    """Submits all jobs, polls to the end."""
    for draw, (tokens, how) in jobs.items():
        engine.submit(draw, prompt(tokens), how)
    return collect(engine, jobs)


def words(length: int, seed: int = 0) -> list[int]:
    """A random prompt."""
    return np.random.default_rng([length, seed]).integers(4, SIZE, length).tolist()


def same(a: Sequence[Response], b: Sequence[Response]) -> None:
    """Two draws are one: the same tokens and ends, log-probs to rounding."""
    assert [ids(r) for r in a] == [ids(r) for r in b]
    assert [r.finish for r in a] == [r.finish for r in b]
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x.engine_logprobs, y.engine_logprobs, atol=LOGPROB_BOUND)


# --- against plain passes ---------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
@pytest.mark.parametrize(("kv_heads", "tied"), HEADS)
def test_log_probs_and_tokens_of_a_plain_pass(kv_heads: int, tied: bool, temperature: float) -> None:
    """Log-probs are a plain pass's to 5e-5, and token (draw, g, t) is what its own uniform selects (law 5)."""
    how = {
        3: (words(1), params(60, n=3, temperature=temperature, seed=2**64 - 1)),
        2**32 - 1: (words(7), params(40, n=10, temperature=temperature, seed=9)),
        4: (words(33), params(30, n=2, temperature=temperature, seed=9)),
    }
    done = run(make(model(1, kv_heads=kv_heads, tied=tied)), how)
    plain = model(1, kv_heads=kv_heads, tied=tied)
    for draw, responses in done.items():
        tokens, asked = how[draw]
        for g, response in enumerate(responses):
            expected = log_softmax(plain_logits(plain, tokens, ids(response)), temperature)
            steps = np.arange(response.num_tokens)
            error = np.abs(response.engine_logprobs - expected[steps, response.token_ids])
            assert error.max() < LOGPROB_BOUND
            u = uniform(asked.seed, Purpose.TOKEN, draw, g, steps)
            cdf = np.cumsum(np.exp(expected), axis=1)
            assert [int(np.argmax(row > x)) for row, x in zip(cdf, u, strict=True)] == ids(response)
    assert sum(response.num_tokens for responses in done.values() for response in responses) > 200


@pytest.mark.parametrize(("kv_heads", "tied"), HEADS)
def test_greedy_equals_generate(kv_heads: int, tied: bool) -> None:
    """Temperature 0 is transformers' own greedy search token for token, prompts of 1 to 65 tokens mixed."""
    lengths = [1, 5, 6, 32, 33, 65]
    jobs: dict[int, Job] = {i: (words(length), params(32, n=2, temperature=0)) for i, length in enumerate(lengths)}
    plain = model(2, kv_heads=kv_heads, tied=tied)
    # Two EOS ids, the second one chosen so that it occurs: generate takes them as well.
    endless = run(make(model(2, kv_heads=kv_heads, tied=tied), eos=NEVER), jobs)
    eos = [EOS_ID, ids(endless[2][0])[20]]
    done = run(make(model(2, kv_heads=kv_heads, tied=tied), eos=eos), jobs)
    for draw, (tokens, _) in jobs.items():
        row = torch.tensor([list(tokens)])
        options = {"do_sample": False, "max_new_tokens": 32, "pad_token_id": 0}
        out = plain.generate(row, attention_mask=torch.ones_like(row), eos_token_id=eos, **options)
        expected = out[0, len(tokens) :].tolist()
        assert [ids(response) for response in done[draw]] == [expected, expected]
        logprobs = log_softmax(plain_logits(plain, tokens, expected), 1.0)
        chosen = logprobs[np.arange(len(expected)), expected]
        np.testing.assert_allclose(done[draw][1].engine_logprobs, chosen, atol=LOGPROB_BOUND)
    assert done[2][0].num_tokens <= 21


@pytest.mark.parametrize("top_p", [0.7, 0.9])
def test_top_p_draws_report_the_renormalised_log_prob(top_p: float) -> None:
    """Beside draws without top-p in the same step, every token lies in its nucleus and its log-prob says so."""
    jobs = {1: (words(4), params(30, n=6, top_p=top_p)), 2: (words(4), params(30, n=6))}
    done = run(make(model(1), eos=NEVER, slots=16), jobs)
    plain = model(1)
    inside = {1: 0, 2: 0}
    for draw, responses in done.items():
        for response in responses:
            for row, token, logprob in zip(
                log_softmax(plain_logits(plain, words(4), ids(response)), 1.0),
                ids(response),
                response.engine_logprobs,
                strict=True,
            ):
                order = np.argsort(-row)
                size = int(np.searchsorted(np.cumsum(np.exp(row[order])), top_p)) + 1
                kept = order[:size]
                inside[draw] += token in kept
                if draw == 1:
                    assert logprob == pytest.approx(row[token] - np.log(np.exp(row[kept]).sum()), abs=LOGPROB_BOUND)
    assert inside[1] == 6 * 30
    assert inside[2] < 6 * 30


# --- law 5: scheduling changes nothing --------------------------------------------------------------

ENDS = (EOS_ID, 9, 31)
TARGETS: dict[int, Job] = {
    100: (words(3), params(30, n=20, temperature=1.0)),
    101: (words(34), params(20, n=3, temperature=0.7, top_p=0.8, seed=77)),
    102: (words(1), params(40, n=5, temperature=1.5)),
}


@pytest.fixture(scope="module")
def alone() -> Responses:
    """Each target draw by itself, in an engine of its own."""
    return {draw: run(make(model(3), eos=ENDS), {draw: job})[draw] for draw, job in TARGETS.items()}


def quiet(engine: TorchEngine) -> Responses:
    """Only the targets."""
    return run(engine, TARGETS)


def crowded(engine: TorchEngine) -> Responses:
    """Others before, between and after."""
    others: dict[int, Job] = {i: (words(2 + i, 1), params(5 + 7 * i, n=3)) for i in range(6)}
    targets = list(TARGETS.items())
    mixed = [
        *list(others.items())[:2],
        *targets[:1],
        *list(others.items())[2:4],
        *targets[1:],
        *list(others.items())[4:],
    ]
    return run(engine, dict(mixed))


def trickling(engine: TorchEngine) -> Responses:
    """One more draw at every poll, the targets in reverse order."""
    done: Responses = {}
    queue: list[tuple[int, Job]] = [(i, (words(4, i), params(3 + 2 * i, n=2))) for i in range(8)]
    for position, item in zip((1, 3, 6), reversed(TARGETS.items()), strict=True):
        queue.insert(position, item)
    while queue:
        draw, (tokens, how) = queue.pop(0)
        engine.submit(draw, prompt(tokens), how)
        done.update((result.draw, result.responses) for result in engine.poll())
    left = [draw for draw in TARGETS if draw not in done]
    while left:
        done.update((result.draw, result.responses) for result in engine.poll())
        left = [draw for draw in TARGETS if draw not in done]
    return done


def cancelling(engine: TorchEngine) -> Responses:
    """Others die in the middle, decoding and waiting, and so does a first life of a target."""
    engine.submit(0, prompt(words(9)), params(3))
    engine.submit(1, prompt(words(9)), params(45, n=4))
    engine.submit(100, prompt(TARGETS[100][0]), TARGETS[100][1])
    engine.submit(2, prompt(words(5)), params(45, n=9))
    assert [result.draw for result in engine.poll()] == [0]
    engine.cancel([1, 100])
    for draw, (tokens, how) in TARGETS.items():
        engine.submit(draw, prompt(tokens), how)
    engine.submit(3, prompt(words(2)), params(4))
    done = {result.draw: result.responses for result in engine.poll()}
    engine.cancel([2])
    done.update(collect(engine, {*TARGETS, 3} - set(done)))
    return done


@pytest.mark.parametrize("slots", [8, 16, 24, 64])
@pytest.mark.parametrize("traffic", [quiet, crowded, trickling, cancelling])
def test_the_same_draw_whatever_else_is_in_flight(
    traffic: Callable[[TorchEngine], Responses], slots: int, alone: Responses
) -> None:
    """Tokens are a function of weights, prompt, parameters and draw: not of slots, neighbours or deaths."""
    done = traffic(make(model(3), eos=ENDS, slots=slots))
    for draw in TARGETS:
        same(done[draw], alone[draw])


def test_the_reference_of_the_scheduling_tests_is_ragged(alone: Responses) -> None:
    """Were all responses equally long, no slot would ever be refilled in the middle and the test above be idle."""
    lengths = [response.num_tokens for response in alone[100]]
    assert len(set(lengths)) > 5
    assert {response.finish for response in alone[100]} == {Finish.STOP, Finish.LENGTH}


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_the_first_responses_do_not_depend_on_n(n: int, alone: Responses) -> None:
    """Response g is its own (draw, g): sharing one prefill among more or fewer changes none of them."""
    tokens, how = TARGETS[100]
    done = run(make(model(3), eos=ENDS), {100: (tokens, params(30, n=n, temperature=how.temperature, seed=how.seed))})
    same(done[100], alone[100][:n])


@pytest.mark.parametrize("change", [{"seed": 6}, {"draw": 101}], ids=str)
def test_another_seed_or_draw_gives_other_tokens(change: dict[str, int]) -> None:
    """Seed and draw index both count; and within a draw no two responses share their numbers."""
    base = {"seed": 5, "draw": 100}
    results = []
    for key in (base, base | change):
        job = (words(3), params(30, n=4, seed=key["seed"]))
        results.append([ids(r) for r in run(make(model(3), eos=NEVER), {key["draw"]: job})[key["draw"]]])
    rows = [tuple(tokens) for result in results for tokens in result]
    assert len(set(rows)) == 8


# --- how responses end ------------------------------------------------------------------------------


# The counting model: a prompt that ends in v is answered v + 1, v + 2, ... EOS ids are 20 and 30.
@pytest.mark.parametrize(
    ("last", "limit", "expected", "finish"),
    [
        (16, 10, [17, 18, 19, 20], Finish.STOP),
        (26, 10, [27, 28, 29, 30], Finish.STOP),  # the second EOS id
        (20, 12, [*range(21, 31)], Finish.STOP),  # an EOS in the prompt ends nothing
        (16, 4, [17, 18, 19, 20], Finish.STOP),  # EOS exactly at the limit
        (16, 3, [17, 18, 19], Finish.LENGTH),  # one short of it
        (19, 10, [20], Finish.STOP),  # EOS at once
        (19, 1, [20], Finish.STOP),
        (5, 1, [6], Finish.LENGTH),
        (58, 6, [59, 0, 1, 2, 3, 4], Finish.LENGTH),
    ],
)
@pytest.mark.parametrize("before", [[], [40, 7, 7]], ids=["prompt of one token", "longer prompt"])
def test_how_a_response_ends(before: list[int], last: int, limit: int, expected: list[int], finish: Finish) -> None:
    """Any EOS id ends a response, is in it once and last, and beats the limit when both fall together."""
    done = run(make(counting_model(), eos=[20, 30]), {0: ([*before, last], params(limit, n=3))})
    assert [ids(response) for response in done[0]] == [expected] * 3
    assert [response.finish for response in done[0]] == [finish] * 3


def test_eos_is_last_and_single_in_a_ragged_draw() -> None:
    """In a sampled draw of 60 responses of many lengths, STOP and an EOS at the end are one and the same."""
    eos = {EOS_ID, 9, 31}
    responses = run(make(model(4), eos=[*eos], slots=24), {0: (words(6), params(30, n=60))})[0]
    for response in responses:
        tokens = ids(response)
        assert eos.isdisjoint(tokens[:-1])
        assert (response.finish is Finish.STOP) == (tokens[-1] in eos)
        assert response.finish is Finish.STOP or len(tokens) == 30
    assert len({response.num_tokens for response in responses}) > 8
    assert {response.finish for response in responses} == {Finish.STOP, Finish.LENGTH}
    assert {ids(response)[-1] for response in responses if response.finish is Finish.STOP} == eos


@pytest.mark.parametrize("length", [31, 32, 33, 64])
def test_a_row_may_fill_the_engine_to_its_last_token(length: int) -> None:
    """Prompt + response = max_tokens is allowed on either side of a block of cache positions."""
    how = params(20, n=2)
    done = run(make(model(1), eos=NEVER, max_tokens=length + 20), {0: (words(length), how)})
    for response in done[0]:
        logprobs = log_softmax(plain_logits(model(1), words(length), ids(response)), 1.0)
        chosen = logprobs[np.arange(20), response.token_ids]
        np.testing.assert_allclose(response.engine_logprobs, chosen, atol=LOGPROB_BOUND)


# --- stop strings -----------------------------------------------------------------------------------

LETTERS = "".join(chr(0x41 + i) for i in range(SIZE))  # token v reads chr(65 + v)
READING = "日本語をよむひとのための".encode()  # 12 characters, 36 bytes: token v is byte v


def letters(tokens: Sequence[int]) -> str:
    """One character a token."""
    return "".join(LETTERS[token] for token in tokens)


def sparse(tokens: Sequence[int]) -> str:
    """Tokens 10 to 39 are special: like a tokenizer that skips special tokens, they leave no text."""
    return "".join(LETTERS[token] for token in tokens if not 10 <= token < 40)


def spelled(tokens: Sequence[int]) -> str:
    """A byte a token, as byte-level tokenizers spell rare characters: three tokens a character."""
    return bytes(READING[token % len(READING)] for token in tokens).decode("utf-8", errors="replace")


# The counting model from token 2 on says 3, 4, 5, ... and reads "DEFGH..."
@pytest.mark.parametrize(
    ("decode", "stop", "last"),
    [
        (letters, ["D"], 3),  # the very first token
        (letters, ["H"], 7),
        (letters, ["FGHIJKLMNOPQ"], 16),  # over twelve tokens
        (letters, ["zz", "XY", "MN"], 13),  # the first of several to come
        (letters, [LETTERS[3:50]], 49),  # over all of a long response
        (sparse, [LETTERS[9] + LETTERS[40]], 40),  # 30 special tokens between its characters
        (spelled, [READING[6:33].decode()], 32),  # 9 characters in 27 tokens
    ],
)
def test_stop_strings(decode: Callable[[Sequence[int]], str], stop: list[str], last: int) -> None:
    """A response ends with the token that completes a stop string, however many tokens it took."""
    engine = make(counting_model(), eos=NEVER, decode=decode)
    done = run(engine, {0: ([2], params(56, n=2, stop=stop)), 1: ([2], params(56))})
    assert [ids(response) for response in done[0]] == [[*range(3, last + 1)]] * 2
    assert [response.finish for response in done[0]] == [Finish.STOP] * 2
    assert done[1][0].num_tokens == 56  # the draw without stop strings goes on
    assert done[1][0].finish is Finish.LENGTH


@pytest.fixture(scope="module")
def free() -> tuple[Response, ...]:
    """Long responses without any end."""
    return run(make(model(5), eos=NEVER), {0: (words(5), params(140, n=5))})[0]


@pytest.mark.parametrize("at", [1, 60, 139])
def test_stop_strings_in_long_sampled_responses(at: int, free: tuple[Response, ...]) -> None:
    """Every response of a draw is cut at the first place where its own text holds the string, and only there."""
    stop = letters(ids(free[2])[at - 1 : at + 1])
    done = run(make(model(5), eos=NEVER, decode=letters), {0: (words(5), params(140, n=5, stop=[stop]))})[0]
    cut = 0
    for whole, response in zip(free, done, strict=True):
        place = letters(ids(whole)).find(stop)
        expected = ids(whole) if place < 0 else ids(whole)[: place + 2]
        assert ids(response) == expected
        assert response.finish is (Finish.LENGTH if place < 0 else Finish.STOP)
        cut += place >= 0
    assert cut >= 1


def test_a_stop_string_at_the_limit_stops() -> None:
    """Completed by the last token allowed, it is a STOP like an EOS there."""
    engine = make(counting_model(), eos=NEVER, decode=letters)
    done = run(engine, {0: ([2], params(5, stop=["GH"])), 1: ([2], params(4, stop=["GH"]))})
    assert [(ids(r[0]), r[0].finish) for r in (done[0], done[1])] == [
        ([3, 4, 5, 6, 7], Finish.STOP),
        ([3, 4, 5, 6], Finish.LENGTH),
    ]


# --- continuous batching, by counting forward passes ------------------------------------------------


def passes(slots: int, jobs: list[tuple[int, int]]) -> list[Forward]:
    """The forward passes for draws of (n, tokens each), no EOS."""
    policy = model(0)
    engine = make(policy, eos=NEVER, slots=slots)
    log = watch(policy)
    run(engine, {i: ([5, 6], params(length, n=n)) for i, (n, length) in enumerate(jobs)})
    assert all(entry.tokens == 1 for entry in log if entry.decode)
    return log


# A response of L tokens takes its first from the prefill and L - 1 decode steps.
# - One of 41 tokens holds a slot for 40 steps; seven other slots take 70 of 5 tokens in 70 / 7 rounds
#   of 4 steps: 40 in all. Waiting for whole batches of 8: 40 + 8 x 4 = 72.
# - 8 slots, 12 responses of 11 tokens: two rounds of 10.
# - 16 slots, one draw of 16 of 9 tokens and one of 16 of 5: 8 + 4.
# - Seven of one token leave before the first step, and the seven that wait enter at once: 40.
@pytest.mark.parametrize(
    ("slots", "jobs", "steps"),
    [
        (8, [(1, 41), *[(1, 5)] * 70], 40),
        (8, [(1, 41), (70, 5)], 40),
        (8, [(12, 11)], 20),
        (16, [(16, 9), (16, 5)], 12),
        (8, [(1, 41), (7, 1), (7, 41)], 40),
        (8, [(30, 1)], 0),
    ],
)
def test_steps_are_those_of_continuous_batching(slots: int, jobs: list[tuple[int, int]], steps: int) -> None:
    """Finished rows leave at once and waiting ones enter: no step waits for a batch.

    Prompts of two tokens, at most 256 tokens: one prefill for all draws.
    """
    log = passes(slots, jobs)
    assert sum(entry.decode for entry in log) == steps
    assert [(entry.rows, entry.tokens) for entry in log if not entry.decode] == [(1, 2 * len(jobs))]


# 24 slots. 20 responses of 5 tokens and one draw of 3 of 9: 23 rows -> 24 for 4 steps, then 3 rows -> 8
# for 4. 9 rows -> 16. 17 slots hold 17 rows -> 24, then the eighteenth alone -> 8.
@pytest.mark.parametrize(
    ("slots", "jobs", "rows"),
    [
        (24, [(20, 5), (3, 9)], [(24, 4), (8, 4)]),
        (24, [(9, 3)], [(16, 2)]),
        (64, [(1, 3)], [(8, 2)]),
        (17, [(18, 3)], [(24, 2), (8, 2)]),
    ],
)
def test_rows_are_the_occupied_slots_in_blocks_of_eight(
    slots: int, jobs: list[tuple[int, int]], rows: list[tuple[int, int]]
) -> None:
    """A step computes no more rows than the occupied ones rounded up to 8, and never fewer than 8."""
    decoded = [entry.rows for entry in passes(slots, jobs) if entry.decode]
    assert [(size, len(list(run))) for size, run in groupby(decoded)] == rows


def test_a_cancelled_draw_frees_its_slots_at_once() -> None:
    """8 slots full of a dead draw would cost 59 steps more; cancelled ones cost none, and never come back."""
    policy = model(0)
    engine = make(policy, eos=NEVER)
    log = watch(policy)
    engine.submit(0, prompt([5]), params(2))
    engine.submit(1, prompt([5]), params(61, n=20))  # 7 decode, 13 wait
    assert [result.draw for result in engine.poll()] == [0]
    engine.cancel([1, 99])
    engine.submit(2, prompt([5]), params(4, n=8))
    assert collect(engine, [2])[2][7].num_tokens == 4
    assert sum(entry.decode for entry in log) == 1 + 3
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()


# --- weights ----------------------------------------------------------------------------------------


def weights(policy: Any) -> list[tuple[str, torch.Tensor]]:
    """What a learner hands over."""
    return [(name, parameter.detach()) for name, parameter in policy.named_parameters()]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_new_weights_are_the_policy_from_now_on(tied: bool) -> None:
    """After load_weights a draw is that of an engine born with them, and says so; the source may change later."""
    job = (words(5), params(30, n=4))
    engine = make(model(6, tied=tied))
    old = run(engine, {0: job})[0]
    assert {version for response in old for version, _ in response.token_versions} == {0}
    source = model(7, tied=tied)
    engine.load_weights(3, iter(weights(source)))
    source.model.embed_tokens.weight.zero_()
    new = run(engine, {0: job})[0]
    same(new, run(make(model(7, tied=tied)), {0: job})[0])
    assert [ids(response) for response in new] != [ids(response) for response in old]
    assert [response.token_versions for response in new] == [((3, response.num_tokens),) for response in new]


def test_weights_that_change_under_draws_in_flight() -> None:
    """Rows go on with their cache, each token by the policy it records.

    Draw 0 (5 tokens) ends at step 4, when draw 1 has 5 of its 30 tokens: version 7 has the other 25.
    Draw 2 enters with version 7. Version 7 loaded twice makes one run.
    """
    engine = make(model(6), eos=NEVER)
    engine.submit(0, prompt(words(3)), params(5))
    engine.submit(1, prompt(words(6)), params(30, n=4))
    assert [result.draw for result in engine.poll()] == [0]
    engine.load_weights(7, weights(model(7)))
    engine.submit(2, prompt(words(9)), params(12))
    done = {result.draw: result.responses for result in engine.poll()}
    engine.load_weights(7, weights(model(7)))
    done.update(collect(engine, [1]))
    assert [response.token_versions for response in done[1]] == [((0, 5), (7, 25))] * 4
    assert done[2][0].token_versions == ((7, 12),)
    for response in done[1]:
        expected = log_softmax(cached_logits({0: model(6), 7: model(7)}, words(6), response), 1.0)
        chosen = expected[np.arange(30), response.token_ids]
        np.testing.assert_allclose(response.engine_logprobs, chosen, atol=LOGPROB_BOUND)


def test_responses_that_enter_after_new_weights_record_what_sampled_them() -> None:
    """A draw wider than the slots is prefilled before the change; its later responses enter after it.

    Whether their first token comes from the old prefill or from a new one, its recorded version and its
    log-prob must belong to the same policy (law 6).
    """
    engine = make(model(6), eos=NEVER)
    engine.submit(0, prompt(words(3)), params(5))
    engine.submit(1, prompt(words(6)), params(10, n=16))
    assert [result.draw for result in engine.poll()] == [0]
    engine.load_weights(7, weights(model(7)))
    done = collect(engine, [1])[1]
    policies = {0: model(6), 7: model(7)}
    assert [sum(count for _, count in response.token_versions) for response in done] == [10] * 16
    assert {response.token_versions[-1][0] for response in done} == {7}
    for response in done:
        expected = log_softmax(cached_logits(policies, words(6), response), 1.0)
        chosen = expected[np.arange(10), response.token_ids]
        np.testing.assert_allclose(response.engine_logprobs, chosen, atol=LOGPROB_BOUND)


def drop(named: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """All but the final norm."""
    return (item for item in named if item[0] != "model.norm.weight")


def add(named: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """One nobody knows."""
    yield from named
    yield "model.extra.bias", torch.zeros(3)


def shrink(named: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """One of another shape, that would broadcast without a word."""
    return ((name, tensor[:1] if name == "model.norm.weight" else tensor) for name, tensor in named)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [(drop, "model.norm.weight"), (add, "model.extra.bias"), (shrink, "model.norm.weight")],
)
def test_wrong_weights_are_refused_by_name(spoil: Callable[..., Any], name: str) -> None:
    """A missing, unknown or misshapen weight is an error that says which, and the version stays."""
    engine = make(model(6))
    with pytest.raises(EngineError, match=name):
        engine.load_weights(4, spoil(weights(model(7))))
    assert engine.version == 0


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "how", "message"),
    [
        ([5] * 21, params(12), "draw 8.*33 tokens of 32"),
        ([], params(12), "draw 8.*empty"),
        ([5], params(0), "draw 8.*at least one"),
        ([5], params(12, n=0), "draw 8.*at least one"),
        ([5], params(12, stop=["x"]), "decode"),
    ],
)
def test_submit_refuses_and_forgets(tokens: list[int], how: SamplingParams, message: str) -> None:
    """A refused draw says why, is not in flight, and its index can be used."""
    engine = make(model(0), max_tokens=32)
    with pytest.raises(EngineError, match=message):
        engine.submit(8, prompt(tokens), how)
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()
    assert len(run(engine, {8: ([5] * 20, params(12, n=2))})[8]) == 2


@pytest.mark.parametrize("slots", [0, 1, 7])
def test_fewer_than_eight_slots_are_refused(slots: int) -> None:
    """Rows come in eights, so fewer slots would change results with the load."""
    with pytest.raises(EngineError, match=f"slots = {slots}"):
        make(model(0), slots=slots)


def test_an_engine_works_after_close_and_again() -> None:
    """close drops what is in flight, twice is once, and the engine owns nothing that a new draw could meet."""
    engine = make(model(3))
    engine.submit(0, prompt([5]), params(2))
    engine.submit(1, prompt([5]), params(50, n=12))
    engine.poll()
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()


def test_polls_without_time_come_back_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a caller can look at signals; the responses are the same bits as those of a patient poll."""
    jobs: dict[int, Job] = {draw: (words(6, draw), params(20, n=3)) for draw in range(4)}
    patient = run(make(model()), jobs)
    monkeypatch.setattr("dapo.rollout.torch_engine.POLL_SECONDS", 1e-6)
    engine = make(model())
    for draw, (tokens, how) in jobs.items():
        engine.submit(draw, prompt(tokens), how)
    done: Responses = {}
    empty = 0
    while len(done) < len(jobs):
        finished = engine.poll()
        empty += not finished
        done.update((result.draw, result.responses) for result in finished)
    assert empty > 3
    for draw in jobs:
        same(done[draw], patient[draw])


def test_cancel_counts_what_was_sampled_in_vain() -> None:
    """Tokens of running, finished and unfetched responses of the draw; nothing for draws not in flight."""
    engine = make(model())
    engine.submit(0, prompt(words(3)), params(2))
    engine.submit(1, prompt(words(3)), params(30, n=2))
    assert [result.draw for result in engine.poll()] == [0]
    sampled = sum(len(row.tokens) for row in engine._active)
    finished = [r.num_tokens for draw in engine._draws.values() for r in draw.done.values()]
    assert sampled + sum(finished) > 0
    assert engine.cancel([0, 1, 7]) == sampled + sum(finished)
    assert engine.cancel([1]) == 0
