"""What every rollout engine owes the rest of the system, through the RolloutEngine Protocol alone.

A new engine is one more line in ENGINES. Its factory gives an engine for prompts over tiny.py's
vocabulary and responses of up to 16 tokens; where its tokens are a function of the draw it says so by
`reproducible`, otherwise the tests of that are skipped.
"""

from __future__ import annotations

import functools
import importlib.util
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from dapo.config.scale import VllmConfig
from dapo.errors import EngineError
from dapo.rollout.base import RolloutEngine
from dapo.rollout.scripted import Order, ScriptedEngine
from dapo.rollout.torch_engine import TorchEngine
from dapo.rollout.vllm_engine import VllmEngine
from dapo.types import Finish, FinishedDraw, Prompt, Response
from helpers_cluster import close_open, remote_engines
from helpers_engine import Responses, collect, ids, params
from helpers_examples import calculator_engine, plain_engine
from tiny import EOS_ID, model, prompt


def script(draw: int, asked: Prompt, g: int) -> list[int]:
    """Ragged responses that end with an EOS, a function of the draw, the prompt and g."""
    length = (7 * draw + 5 * g + len(asked.token_ids)) % 13
    return [*(4 + (3 * draw + g + t) % 50 for t in range(length)), EOS_ID]


def scripted(order: Order) -> RolloutEngine:
    """A scripted engine of this order."""
    return ScriptedEngine(script, order=order)


def random_order() -> RolloutEngine:
    """A scripted engine whose draws come in any order, the same at every run."""
    rng = np.random.default_rng(0)
    return scripted(lambda waiting: int(rng.integers(len(waiting))))


def torch_engine() -> RolloutEngine:
    """The embedded engine on the tiny model, its slots fewer than the responses."""
    return TorchEngine(model(4), eos_ids=[EOS_ID, 9, 31], slots=8, max_tokens=64)


def vllm_engine() -> RolloutEngine:
    """vLLM on a tiny model whose heads it has kernels for."""
    settings = VllmConfig(eager=True, kv_cache_gib=0.05)
    ends = [EOS_ID, 9, 31]
    policy = POLICIES["vllm"](4)
    return VllmEngine(
        policy, dtype=torch.float32, device="cpu", eos_ids=ends, slots=8, max_tokens=64, settings=settings
    )


ENGINES: dict[str, Callable[[], RolloutEngine]] = {
    "scripted-fifo": lambda: scripted("fifo"),
    "scripted-lifo": lambda: scripted("lifo"),
    "scripted-shortest": lambda: scripted("shortest"),
    "scripted-random": random_order,
    "torch": torch_engine,
    "example-plain": plain_engine,
    "example-calculator": calculator_engine,
    "ray": lambda: remote_engines(torch_engine),
}
if importlib.util.find_spec("vllm") is not None:  # `make test-vllm`
    ENGINES["vllm"] = vllm_engine
POLICIES = defaultdict(lambda: model, {"vllm": functools.partial(model, head_dim=32)})  # what an engine decodes
LIMIT = 10  # some of the responses end by EOS, some by this
PROMPTS = [prompt([4 + (5 * i + j) % 50 for j in range(1 + 4 * i)], name=f"p{i}") for i in range(4)]


SLOW = ("ray",)


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ENGINES])
def kind(request: pytest.FixtureRequest) -> str:
    """Which engine."""
    return str(request.param)


@pytest.fixture
def make(kind: str) -> Iterator[Callable[[], RolloutEngine]]:
    """Gives fresh engines of one kind, closed after the test."""
    made: list[RolloutEngine] = []

    def one() -> RolloutEngine:
        made.append(ENGINES[kind]())
        return made[-1]

    yield one
    for engine in made:
        engine.close()
    close_open()


@pytest.fixture
def engine(make: Callable[[], RolloutEngine]) -> RolloutEngine:
    """One engine."""
    return make()


def submit(engine: RolloutEngine, draw: int, n: int = 3) -> None:
    """Draw d is for prompt d mod 4."""
    engine.submit(draw, PROMPTS[draw % 4], params(LIMIT, n=n))


def key(responses: tuple[Response, ...]) -> list[tuple[list[int], Finish]]:
    """What reproducible engines reproduce."""
    return [(ids(response), response.finish) for response in responses]


def reproducible(engine: RolloutEngine) -> None:
    """Skips the test for engines that promise no tokens."""
    if not engine.reproducible:
        pytest.skip("not reproducible")


def test_every_draw_comes_once_with_its_n_responses(engine: RolloutEngine) -> None:
    """Different n, more draws than fit at one time: none lost, none twice, none with another's n."""
    sizes = {draw: 1 + (5 * draw) % 11 for draw in range(12)}
    for draw, n in sizes.items():
        submit(engine, draw, n)
    done = collect(engine, sizes)
    assert {draw: len(responses) for draw, responses in done.items()} == sizes
    with pytest.raises(EngineError):
        engine.poll()


def test_a_response_is_consistent(engine: RolloutEngine) -> None:
    """Its arrays are parallel and typed, its end says what its length says, its versions add up."""
    for draw in range(4):
        submit(engine, draw, 9)
    responses = [response for group in collect(engine, range(4)).values() for response in group]
    for response in responses:
        length = response.num_tokens
        assert 1 <= length <= LIMIT
        for array, dtype in (
            (response.token_ids, np.int32),
            (response.generated, np.bool_),
            (response.engine_logprobs, np.float32),
        ):
            assert array.shape == (length,)
            assert array.dtype == dtype
        assert response.generated.any()
        assert np.isfinite(response.engine_logprobs).all()
        assert (response.engine_logprobs <= 0).all()
        assert length == LIMIT or response.finish is not Finish.LENGTH
        assert sum(count for _, count in response.token_versions) == length
        assert all(count > 0 for _, count in response.token_versions)
    assert {response.finish for response in responses} >= {Finish.STOP, Finish.LENGTH}
    assert len({response.num_tokens for response in responses}) > 3


def test_responses_stand_in_order_of_g(make: Callable[[], RolloutEngine]) -> None:
    """The first k of n responses are the k of a draw of k, so index g names one response and finishing order none."""
    big, small = make(), make()
    reproducible(big)
    for draw in range(4):
        submit(big, draw, 8)
        submit(small, draw, 5)
    many, few = collect(big, range(4)), collect(small, range(4))
    for draw in range(4):
        assert key(many[draw])[:5] == key(few[draw])
        assert len({tuple(ids(response)) for response in many[draw]}) > 4


def test_the_same_draw_gives_the_same_tokens(make: Callable[[], RolloutEngine]) -> None:
    """In another engine, submitted in another order among others, and again after it was polled."""
    first, second = make(), make()
    reproducible(first)
    for draw in range(6):
        submit(first, draw)
    expected = collect(first, range(6))
    for draw in (9, 4, 2, 5, 0, 7, 3, 1):
        submit(second, draw)
    others = collect(second, [9, 4, 2, 5, 0, 7, 3, 1])
    submit(first, 3)
    again = collect(first, [3])
    assert {draw: key(others[draw]) for draw in range(6)} == {draw: key(expected[draw]) for draw in range(6)}
    assert key(again[3]) == key(expected[3])
    assert key(expected[0]) != key(expected[4])  # one prompt, two draws (law 4)


def test_cancelled_draws_never_come_back(engine: RolloutEngine) -> None:
    """Waiting or being decoded, cancelled before the first poll or between two; unknown draws are ignored."""
    for draw in range(10):
        submit(engine, draw, 6)
    engine.cancel([1, 4, 77])
    seen = [result.draw for result in engine.poll()]
    left = [draw for draw in (0, 2, 3, 5, 6, 7, 8, 9) if draw not in seen]
    engine.cancel({*left[:1], *left[-1:], *seen})
    assert set(seen) | set(left) == {0, 2, 3, 5, 6, 7, 8, 9}
    collect(engine, left[1:-1])
    with pytest.raises(EngineError):
        engine.poll()


def test_a_cancelled_draw_can_be_asked_for_again(make: Callable[[], RolloutEngine]) -> None:
    """An aborted draw is run again whole: complete, and the tokens it would have had."""
    engine, other = make(), make()
    for draw in range(5):
        submit(engine, draw, 6)
    engine.cancel([3])
    submit(engine, 3, 6)
    again = collect(engine, range(5))[3]
    assert len(again) == 6
    submit(other, 3, 6)
    if engine.reproducible:
        assert key(again) == key(collect(other, [3])[3])


@pytest.mark.parametrize("seed", range(3))
def test_any_traffic(engine: RolloutEngine, seed: int) -> None:
    """Submitting, polling and cancelling at random: poll gives only what is in flight, all of it, once."""
    rng = np.random.default_rng(seed)
    inflight: dict[int, int] = {}
    done: Responses = {}
    cancelled: set[int] = set()

    def take(results: list[FinishedDraw]) -> None:
        assert results
        for result in results:
            assert len(result.responses) == inflight.pop(result.draw)
            done[result.draw] = result.responses

    for draw in range(30):
        inflight[draw] = int(rng.integers(1, 7))
        submit(engine, draw, inflight[draw])
        if rng.random() < 0.4 and inflight:
            take(engine.poll())
        if rng.random() < 0.5 and inflight:
            victim = int(rng.choice(list(inflight)))
            engine.cancel([victim])
            cancelled.add(victim)
            del inflight[victim]
    while inflight:
        take(engine.poll())
    assert cancelled
    assert set(done) == set(range(30)) - cancelled
    with pytest.raises(EngineError):
        engine.poll()


def test_new_weights_mark_the_tokens_after_them(engine: RolloutEngine, kind: str) -> None:
    """A draw submitted after load_weights is of the new version alone; those in flight stay and add up."""
    submit(engine, 0)
    engine.load_weights(1, POLICIES[kind](1).named_parameters())
    collect(engine, [0])
    for draw in (1, 2, 3):
        submit(engine, draw)
    engine.poll()
    engine.load_weights(5, POLICIES[kind](2).named_parameters())
    submit(engine, 11)
    done: Responses = {}
    while 11 not in done:
        done.update((result.draw, result.responses) for result in engine.poll())
    for draw, responses in done.items():
        for response in responses:
            versions = [version for version, _ in response.token_versions]
            assert versions in ([[5]] if draw == 11 else [[1], [1, 5], [5]])
            assert sum(count for _, count in response.token_versions) == response.num_tokens


def test_a_draw_in_flight_is_not_taken_twice(engine: RolloutEngine) -> None:
    """Submitting it again is an error that names it, and leaves the first alone."""
    submit(engine, 12, 2)
    with pytest.raises(EngineError, match="12"):
        submit(engine, 12, 3)
    assert len(collect(engine, [12])[12]) == 2
    with pytest.raises(EngineError):
        engine.poll()


@pytest.mark.parametrize("before", ["nothing", "all cancelled", "closed", "closed twice"])
def test_poll_with_nothing_in_flight(engine: RolloutEngine, before: str) -> None:
    """It would wait for ever, so it is an error; close is safe twice."""
    if before != "nothing":
        submit(engine, 0)
        submit(engine, 1, 9)
    if before == "all cancelled":
        engine.cancel([0, 1])
    for _ in range(["closed", "closed twice"].index(before) + 1 if before.startswith("closed") else 0):
        engine.close()
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()
