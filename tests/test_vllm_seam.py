"""What the engine on vLLM asks of vLLM, with a stand-in that records it: no vLLM and no GPU is needed.

What real vLLM makes of it: test_vllm_engine.py.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import helpers_run as helpers
from dapo import build
from dapo.errors import EngineError
from dapo.learner.torch_learner import TorchLearner
from dapo.model.loading import load_model
from dapo.rollout import vllm_engine
from dapo.rollout.torch_engine import TorchEngine
from dapo.types import Finish
from helpers_engine import collect, ids, params
from helpers_vllm import TOKEN, fake_engine
from tiny import model, prompt

RELOAD = ["reload_weights", "mend_head"]


def test_an_engine_that_rests_sleeps_until_it_gets_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights' memory comes back before they are loaded, the cache's behind; nothing is sampled between."""
    engine, fake = fake_engine(monkeypatch, sleep=True)
    engine.rest()
    engine.rest()
    with pytest.raises(EngineError, match="sleeps"):
        engine.submit(0, prompt([4]), params(3))
    engine.load_weights(1, model(1).named_parameters())
    wake = [("wake_up", "weights"), *RELOAD, ("wake_up", "kv_cache"), ("reset_prefix_cache", False)]
    assert fake.calls == [("sleep", 2), *wake]
    engine.submit(0, prompt([4]), params(3))
    with pytest.raises(EngineError, match="1 draws in flight"):
        engine.rest()
    assert ids(collect(engine, [0])[0][0]) == [TOKEN] * 3


def test_an_engine_that_has_its_gpu_alone_never_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without engine.vllm.sleep rest does nothing, and so wakes nothing."""
    engine, fake = fake_engine(monkeypatch)
    engine.rest()
    engine.load_weights(1, model(1).named_parameters())
    assert fake.calls == [*RELOAD, ("reset_prefix_cache", False)]


def test_training_lets_the_engine_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With engine.vllm.sleep, before the learner computes anything; nothing is asked of it until weights come."""
    calls: list[str] = []

    class Logged(TorchEngine):
        def rest(self) -> None:
            assert not self._draws
            calls.append("rest")

    def note(owner: type, name: str) -> None:
        inner = getattr(owner, name)

        def method(self: Any, *arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return inner(self, *arguments, **named)

        monkeypatch.setattr(owner, name, method)

    def make(config: Any, given: Any, policy: Any) -> Logged:
        own = load_model(config.model, torch.float32, torch.device("cpu"))
        return Logged(own, eos_ids=policy.eos_ids, slots=16, max_tokens=20, decode=policy.decode)

    for name in ("poll", "load_weights", "weight_samples"):
        note(Logged, name)
    for name in ("update", "logprobs"):
        note(TorchLearner, name)
    monkeypatch.setattr(build, "need_vllm", lambda: None)
    monkeypatch.setattr(build, "make_engine", make)
    words = ("engine.kind=vllm", "engine.vllm.sleep=true", "eval.data=[]")
    recipe = helpers.write_recipe(tmp_path)
    code, _, err = helpers.quiet_dapo("train", recipe, *words, "--output-dir", tmp_path / "run")
    assert code == 0, err
    awake = True
    for call in calls:
        if call == "rest":
            awake = False
        elif call == "load_weights":
            awake = True
        assert awake is (call not in ("update", "logprobs", "rest")), calls
    assert calls.count("update") == 4
    assert calls.count("load_weights") == 3


@pytest.mark.parametrize("recompute", [False, True])
def test_what_waits_for_its_first_token_begins_under_the_new_weights(
    recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again under another salt, as a draw that comes later; what runs stays, and keeps its name."""
    engine, fake = fake_engine(monkeypatch, slots=2)
    engine.submit(0, prompt([4]), params(1))
    engine.submit(1, prompt([4, 6]), params(5, n=2))
    collect(engine, [0])
    before = {name: request.prompt["cache_salt"] for name, request in fake.requests.items()}
    engine.load_weights(7, model(1).named_parameters(), recompute=recompute)
    engine.submit(2, prompt([4, 6]), params(2))
    after = {name: request.prompt["cache_salt"] for name, request in fake.requests.items()}
    running = [name for name in before if name in after]
    assert len(before) == 2
    assert len(running) == 1  # draw 0 ended, so the second slot was free for one step: draw 1's other response waits
    assert len(set(before.values())) == 1
    assert {salt for name, salt in after.items() if name not in running}.isdisjoint(before.values())
    seeds = sorted(request.params.seed for request in fake.requests.values())
    assert len(set(seeds)) == 3
    assert (("reset_prefix_cache", True) in fake.calls) is recompute
    assert ("reset_prefix_cache", False) not in fake.calls  # it can't be done while blocks are held
    done = collect(engine, [1, 2])
    assert [r.token_versions for r in done[1]] == [((0, 1), (7, 4)), ((7, 5),)]
    assert done[2][0].token_versions == ((7, 2),)


def test_a_request_that_vllm_gives_up_is_an_aborted_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its draw comes back with it, and the others whole, so that it is run again."""
    engine, fake = fake_engine(monkeypatch)
    engine.submit(3, prompt([4]), params(4, n=3))
    fake.aborting.add(list(fake.requests)[1])
    done = collect(engine, [3])[3]
    assert [response.finish for response in done] == [Finish.LENGTH, Finish.ABORT, Finish.LENGTH]
    assert [response.num_tokens for response in done] == [4, 1, 4]


@pytest.mark.parametrize(("logprob", "kept"), [(math.nan, None), (1e-7, 0.0), (-math.inf, -math.inf)])
def test_a_logprob_that_is_no_number_is_an_error(
    logprob: float, kept: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not taken for certainty; rounding above 0 is."""
    engine, fake = fake_engine(monkeypatch)
    fake.logprob = logprob
    engine.submit(3, prompt([4]), params(1))
    if kept is None:
        with pytest.raises(EngineError, match=r"draw 3: .* no number"):
            engine.poll()
    else:
        assert collect(engine, [3])[3][0].engine_logprobs.tolist() == [kept]


def test_requests_that_vllm_loses_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an endless wait."""
    engine, fake = fake_engine(monkeypatch)
    engine.submit(3, prompt([4]), params(4, n=3))
    fake.requests.clear()
    with pytest.raises(EngineError, match="lost 3 responses"):
        engine.poll()
    engine.cancel([3])
    assert engine.submit(3, prompt([4]), params(4)) is None
    assert collect(engine, [3])[3][0].num_tokens == 4


def test_cancelling_tells_the_tokens_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of responses that run, of those that ended, and of draws that were not fetched."""
    engine, fake = fake_engine(monkeypatch, slots=3)
    engine.submit(0, prompt([4]), params(2))
    engine.submit(1, prompt([4]), params(6, n=3))
    collect(engine, [0])
    assert engine.cancel([1, 9]) == 4  # two steps of the two that had a slot
    assert not fake.requests
    assert engine.cancel([1]) == 0


def test_weights_reach_vllm_in_its_type_and_as_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """One buffer for every weight, overwritten behind each: vLLM keeps what it gets until a layer is whole."""
    engine, fake = fake_engine(monkeypatch, dtype=torch.bfloat16)
    policy = model(1)
    largest = max(weight.numel() for weight in policy.parameters())
    buffer = torch.empty(largest)

    def reused() -> Any:
        for name, weight in policy.named_parameters():
            view = buffer[: weight.numel()].view(weight.shape)
            view.copy_(weight)
            yield name, view
            buffer.fill_(torch.nan)

    engine.load_weights(1, reused())
    expected = dict(policy.named_parameters())
    assert fake.loaded.keys() == expected.keys()
    assert all(torch.equal(fake.loaded[name], expected[name].to(torch.bfloat16)) for name in expected)
    head = ("lm_head.weight", policy.lm_head.weight)
    engine.load_weights(2, [*policy.named_parameters(), head])  # the second name of a tied weight may be there
    assert fake.loaded.keys() == expected.keys()


def faulty(kind: str) -> Any:
    """Weights of the tiny model with one fault in the middle."""
    weights = list(model(1).named_parameters())
    place = len(weights) // 2
    name, weight = weights[place]
    if kind == "missing":
        del weights[place]
    elif kind == "unknown":
        weights.insert(place, ("model.other.weight", weight))
    elif kind == "shape":
        weights[place] = (name, weight[:-1])
    yield from weights[:place]
    if kind == "raises":
        raise OSError("the learner went away")
    yield from weights[place:]


@pytest.mark.parametrize(
    ("kind", "error", "needle"),
    [
        ("missing", EngineError, "1 weights missing, the first: model"),
        ("unknown", EngineError, "unknown weight model.other.weight"),
        ("shape", EngineError, "has shape"),
        ("raises", OSError, "went away"),
    ],
)
def test_weights_that_are_not_whole(
    kind: str, error: type[Exception], needle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that says which. vLLM still gets every weight, and nothing is sampled until it has good ones."""
    engine, fake = fake_engine(monkeypatch)
    engine.submit(0, prompt([4]), params(2))
    with pytest.raises(error, match=needle):
        engine.load_weights(3, faulty(kind))
    assert fake.loaded.keys() == dict(model(1).named_parameters()).keys()
    with pytest.raises(EngineError, match="not whole"):
        engine.poll()
    with pytest.raises(EngineError, match="not whole"):
        engine.submit(1, prompt([4]), params(2))
    engine.load_weights(4, model(1).named_parameters())
    assert collect(engine, [0])[0][0].token_versions == ((4, 2),)


@pytest.mark.parametrize(
    ("tokens", "how", "needle"),
    [
        (60, {"max_new_tokens": 5}, "65 tokens of 64"),
        (0, {}, "empty"),
        (3, {"n": 0}, "at least one"),
        (3, {"temperature": 0.001}, "vLLM takes 0, or 0.01 and more"),
        (3, {"stop": ["7"]}, "decode"),
    ],
)
def test_draws_that_are_refused(tokens: int, how: dict[str, Any], needle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At submit, and nothing of them is left."""
    engine, fake = fake_engine(monkeypatch)
    with pytest.raises(EngineError, match=needle):
        engine.submit(0, prompt([4] * tokens), params(**how))
    assert not fake.requests
    with pytest.raises(EngineError, match="nothing in flight"):
        engine.poll()


def test_without_vllm_the_mend_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, before anything is loaded."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "vllm" else real(name, *rest))
    code, _, err = helpers.quiet_dapo("train", helpers.write_recipe(tmp_path), "engine.kind=vllm", "--dry-run")
    assert code == 2
    assert 'pip install "dapo-rl[vllm]"' in err
    assert len(err.strip().splitlines()) == 1


def test_closing_removes_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice is safe. vLLM is shut down with the last engine of the process: it would take the others down, too."""
    monkeypatch.setattr(vllm_engine, "IN_USE", [])
    monkeypatch.setattr(vllm_engine, "RELEASED", [])
    other, another = fake_engine(monkeypatch)
    engine, fake = fake_engine(monkeypatch)
    folder = Path(engine._folder.name)
    assert (folder / "config.json").is_file()
    assert (folder / "model.safetensors").is_file()
    engine.close()
    engine.close()
    assert not folder.exists()
    assert fake.calls == []
    other.close()
    assert another.calls == ["shutdown"]
    with pytest.raises(EngineError, match="closed"):
        engine.submit(0, prompt([4]), params(2))
    for asked in (lambda: engine.load_weights(1, iter(())), engine.weight_samples, engine.rest):
        with pytest.raises(EngineError, match="closed"):
            asked()
