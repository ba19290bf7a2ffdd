"""The engine on real vLLM, on the CPU: log-probs, ends, weights in place, weights read back, whole runs.

Needs vllm (`make test-vllm`). The contract of every engine: test_engine_contract.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

import helpers_run as helpers
from dapo.checks.weights import Handed, held
from dapo.config.scale import VllmConfig
from dapo.errors import ConfigError, EngineError
from dapo.rollout import vllm_engine
from dapo.rollout.vllm_engine import VllmEngine
from dapo.types import Finish, Response
from helpers_engine import cached_logits, collect, ids, log_softmax, params, plain_logits
from tiny import EOS_ID, VOCABULARY, prompt
from tiny import model as tiny_model

pytest.importorskip("vllm")

model = functools.partial(tiny_model, head_dim=32)  # vLLM has kernels for heads of 32 and more
SHORT = [5, 9, 6, 22]
LONG = [4 + (7 * i) % 50 for i in range(70)]  # more than two blocks of the KV cache
CLOSE = 2e-5  # of float32 log-probs: vLLM's kernels against transformers'
VLLM = ("engine.kind=vllm", "engine.vllm.eager=true", "engine.vllm.kv_cache_gib=0.05")


def made(policy: Any, **how: Any) -> VllmEngine:
    """An engine of a tiny policy."""
    settings = VllmConfig(eager=True, kv_cache_gib=0.05)
    how = {"dtype": torch.float32, "device": "cpu", "eos_ids": (), "slots": 16, "max_tokens": 128} | how
    return VllmEngine(policy, settings=settings, decode=decode, **how)


def decode(tokens: Any) -> str:
    """One character a token."""
    return "".join(VOCABULARY[token] for token in tokens)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[bool, VllmEngine]]:
    """Engines that no token ends, with a tied head and without."""
    both = {tied: made(model(4, tied=tied)) for tied in (True, False)}
    yield both
    for engine in both.values():
        engine.close()


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def tied(request: pytest.FixtureRequest) -> bool:
    """Whether the head's weight is the embedding's."""
    return bool(request.param)


@pytest.fixture
def engine(engines: dict[bool, VllmEngine], tied: bool) -> Iterator[VllmEngine]:
    """One of the two, with the weights of model(4) as version 0 and nothing in flight."""
    engines[tied].load_weights(0, model(4, tied=tied).named_parameters())
    yield engines[tied]
    engines[tied].cancel(list(range(10)))


def nucleus(logprobs: NDArray[np.float64], top_p: float) -> NDArray[np.float64]:
    """[L, V] log-probabilities of the smallest sets that hold top_p, renormalised; -inf outside."""
    result = np.full_like(logprobs, -np.inf)
    for row, out in zip(logprobs, result, strict=True):
        order = np.argsort(-row, kind="stable")
        mass = np.cumsum(np.exp(row[order]))
        kept = order[mass - np.exp(row[order]) < top_p]
        out[kept] = row[kept] - np.log(np.exp(row[kept]).sum())
    return result


def gap(response: Response, expected: NDArray[np.float64]) -> float:
    """The largest difference from the expected log-probs [L, V] of its tokens."""
    return float(np.abs(expected[range(response.num_tokens), ids(response)] - response.engine_logprobs).max())


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.3, 0.6), (0.0, 1.0), (0.0, 0.3)])
def test_logprobs_are_those_of_the_distribution_sampled_from(
    engine: VllmEngine, tied: bool, temperature: float, top_p: float
) -> None:
    """Behind temperature and top_p, in one batch with greedy requests; greedy ones at temperature 1."""
    policy = model(4, tied=tied)
    engine.submit(0, prompt(SHORT), params(12, n=8, temperature=temperature, top_p=top_p))
    engine.submit(1, prompt(LONG), params(12, n=8, temperature=temperature, top_p=top_p))
    engine.submit(2, prompt(SHORT), params(12, temperature=0.0))
    done = collect(engine, range(3))
    for draw, asked in ((0, SHORT), (1, LONG)):
        for response in done[draw]:
            expected = log_softmax(plain_logits(policy, asked, ids(response)), temperature or 1.0)
            if temperature:
                expected = nucleus(expected, top_p)
            else:
                assert ids(response) == expected.argmax(axis=1).tolist()
            assert gap(response, expected) < CLOSE
        assert len({tuple(ids(response)) for response in done[draw]}) == (8 if temperature else 1)


def test_every_eos_ends_a_response_and_stays(engines: dict[bool, VllmEngine]) -> None:
    """Three of them; a response that none ends is as long as it may be, and its tokens are none of them."""
    ends = {EOS_ID, 9, 31}
    engine = made(model(4), eos_ids=ends)
    engine.submit(0, prompt(SHORT), params(10, n=64))
    seen = set()
    for response in collect(engine, [0])[0]:
        tokens = ids(response)
        stopped = response.finish is Finish.STOP
        assert (tokens[-1] in ends) is stopped
        assert not ends & set(tokens[:-1])
        assert stopped or len(tokens) == 10
        seen.add(tokens[-1] if stopped else None)
    engine.close()
    assert seen == {None, *ends}


def test_a_stop_string_ends_a_response_whose_tokens_stay(engines: dict[bool, VllmEngine]) -> None:
    """Each is the beginning of what it would have been, up to the token that completed the string."""
    engine = engines[True]
    engine.load_weights(0, model(4).named_parameters())
    engine.submit(0, prompt(SHORT), params(24, n=32))
    whole = collect(engine, [0])[0]
    pair = decode(ids(whole[0])[5:7])
    engine.submit(0, prompt(SHORT), params(24, n=32, stop=["no such text", pair]))
    cut = collect(engine, [0])[0]
    assert cut[0].finish is Finish.STOP
    for full, part in zip(whole, cut, strict=True):
        ended = [count for count in range(1, 25) if pair in decode(ids(full)[:count])]
        assert ids(part) == ids(full)[: min(ended, default=24)]
        assert part.finish is (Finish.STOP if ended else Finish.LENGTH)


def test_responses_depend_on_seed_draw_and_g(engines: dict[bool, VllmEngine]) -> None:
    """Any of the three gives other tokens; the same three, alone or beside others, the same ones."""
    engine = engines[True]
    engine.load_weights(0, model(4).named_parameters())
    for draw, seed in ((0, 5), (1, 5), (2, 6)):
        engine.submit(draw, prompt(SHORT), params(16, n=4, seed=seed))
    done = collect(engine, range(3))
    assert len({tuple(ids(response)) for draw in range(3) for response in done[draw]}) == 12
    engine.submit(0, prompt(SHORT), params(16, n=1, seed=6))
    assert ids(collect(engine, [0])[0][0]) not in [ids(response) for response in done[2]]
    engine.submit(1, prompt(SHORT), params(16, n=4, seed=5))
    assert [ids(response) for response in collect(engine, [1])[1]] == [ids(response) for response in done[1]]


def handed(policy: Any) -> Handed:
    """A policy's weights on their way, whose samples are kept."""
    return Handed(policy.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_weights_are_read_back_from_what_decodes(tied: bool, dtype: torch.dtype) -> None:
    """Exactly, the fused and packed ones too, after loading and after each reload; a tied one twice."""
    engine = made(model(4, tied=tied), dtype=dtype)
    assert engine.reproducible is (dtype == torch.float32)
    for version in (4, 1, 2):
        weights = handed(model(version, tied=tied))
        if version != 4:
            engine.load_weights(version, weights)
        samples = list(engine.weight_samples() or ())
        assert held(weights.samples(), samples) == []
        names = [name for name, _ in samples]
        assert set(names) == dict(model(0, tied=tied).named_parameters()).keys()
        assert names.count("model.embed_tokens.weight") == (2 if tied else 1)
        assert {sample.dtype for _, sample in samples} == {dtype}
    other = model(2, tied=tied)
    for layer in other.model.layers:
        layer.self_attn.v_proj.weight[3, :] += 0.5
        layer.mlp.up_proj.weight[7, :] += 0.5
    finding = held(handed(other).samples(), engine.weight_samples() or ())
    assert [found.value for found in finding] == [4.0]
    engine.close()


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_biases_and_norms_of_heads_are_weights_too(family: str) -> None:
    """Qwen2 fuses three biases, Qwen3 has norms of queries and keys: loaded, decoded with, read back."""

    def policy(seed: int) -> Any:
        torch.manual_seed(seed)
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.3}
        config = getattr(transformers, f"{family}Config")(vocab_size=len(VOCABULARY), **sizes, **heads)
        result = getattr(transformers, f"{family}ForCausalLM")(config).float().eval().requires_grad_(False)
        for name, weight in result.named_parameters():
            if name.endswith("bias") or "_norm" in name:
                weight.normal_()
        return result

    new = policy(1)
    engine = made(policy(0))
    weights = handed(new)
    engine.load_weights(1, weights)
    assert held(weights.samples(), engine.weight_samples() or ()) == []
    engine.submit(0, prompt(SHORT), params(12, n=4))
    for response in collect(engine, [0])[0]:
        assert gap(response, log_softmax(plain_logits(new, SHORT, ids(response)), 1.0)) < CLOSE
    engine.close()


def test_a_head_that_a_reload_leaves_stale_is_found(
    engines: dict[bool, VllmEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM 0.32 on a CPU does not renew the packed copy of a tied head by itself; the self-check of weights sees it."""
    engine = engines[True]
    monkeypatch.setattr(vllm_engine, "mend_head", lambda model: None)
    weights = handed(model(3))
    engine.load_weights(1, weights)
    assert [found.value for found in held(weights.samples(), engine.weight_samples() or ())] == [1.0]
    monkeypatch.undo()
    engine.load_weights(2, weights := handed(model(3)))
    assert held(weights.samples(), engine.weight_samples() or ()) == []


@pytest.mark.parametrize("recompute", [False, True], ids=["keep", "recompute"])
def test_weights_change_under_responses_in_flight(engine: VllmEngine, tied: bool, recompute: bool) -> None:
    """Old keys are kept, or made anew; draws that come later meet none of them, though they ask for the same prompt."""
    old, new = model(4, tied=tied), model(1, tied=tied)
    engine.submit(0, prompt(SHORT), params(4))
    engine.submit(1, prompt(LONG), params(12, n=3))
    collect(engine, [0])
    engine.load_weights(7, new.named_parameters(), recompute=recompute)
    engine.submit(2, prompt(LONG), params(12, n=3))
    done = collect(engine, [1, 2])
    for response in done[2]:
        assert response.token_versions == ((7, 12),)
        assert gap(response, log_softmax(plain_logits(new, LONG, ids(response)), 1.0)) < CLOSE
    for response in done[1]:
        assert response.token_versions == ((0, 4), (7, 8))
        kept = log_softmax(cached_logits({0: old, 7: new}, LONG, response), 1.0)
        fresh = log_softmax(plain_logits(new, LONG, ids(response)), 1.0)
        fresh[:4] = kept[:4]
        assert gap(response, fresh if recompute else kept) < CLOSE
        assert gap(response, kept if recompute else fresh) > 100 * CLOSE


def test_a_failed_load_can_be_made_good(engine: VllmEngine, tied: bool) -> None:
    """Half a layer came, then the learner's error: the next weights are whole all the same."""
    new = model(2, tied=tied)

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in new.named_parameters():
            if name.endswith("0.self_attn.v_proj.weight"):
                raise OSError("gone")
            yield name, weight

    with pytest.raises(OSError, match="gone"):
        engine.load_weights(1, broken())
    with pytest.raises(EngineError, match="not whole"):
        engine.submit(0, prompt(SHORT), params(4))
    weights = handed(new)
    engine.load_weights(2, weights)
    assert held(weights.samples(), engine.weight_samples() or ()) == []
    engine.submit(0, prompt(SHORT), params(12, n=4))
    for response in collect(engine, [0])[0]:
        assert gap(response, log_softmax(plain_logits(new, SHORT, ids(response)), 1.0)) < CLOSE


@pytest.mark.parametrize(
    ("policy", "how", "settings", "needle"),
    [
        (tiny_model, {}, VllmConfig(eager=True, kv_cache_gib=0.05), "can't run this model here"),
        (model, {}, VllmConfig(eager=True, sleep=True), "can't sleep on a CPU"),
        (model, {"device": "cuda"}, VllmConfig(eager=True), 'runs on "cpu"'),
    ],
    ids=["heads of 8", "sleep", "device"],
)
def test_what_this_machine_cannot_have_is_told_at_the_start(
    policy: Callable[[], Any], how: dict[str, Any], settings: VllmConfig, needle: str
) -> None:
    """A ConfigError, before anything is sampled."""
    how = {"dtype": torch.float32, "device": "cpu", "eos_ids": (), "slots": 8, "max_tokens": 64} | how
    with pytest.raises(ConfigError, match=needle):
        VllmEngine(policy(), settings=settings, **how)


def train(folder: Path, *words: str | Path) -> list[dict[str, float]]:
    """A run of the tiny model with vLLM; its lines of metrics."""
    recipe = helpers.write_recipe(folder, model=helpers.warm_model(head_dim=32))
    code, _, err = helpers.quiet_dapo("train", recipe, *VLLM, *words, "--output-dir", folder / "run")
    assert code == 0, err
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_a_run(dtype: str, bound: float, tmp_path: Path) -> None:
    """It samples from what it trains: a small gap, no finding of a self-check; its model can be evaluated."""
    _, *lines = train(tmp_path, f"model.dtype={dtype}")
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert 0 < line["mismatch/logprob_abs_mean"] < bound
        assert line["checks/findings"] == 0
        assert line["sampling/engine_failures"] == 0
    assert not (tmp_path / "run" / "checks.jsonl").exists()
    code, _, err = helpers.quiet_dapo("eval", tmp_path / "run", "--k", "2", "--output-dir", tmp_path / "eval")
    assert code == 0, err


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    """In float32: the same tokens, so the same weights, bit by bit."""
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    whole = train(one, "train.num_steps=3", "eval.data=[]")
    train(two, "train.num_steps=1", "eval.data=[]")
    code, _, err = helpers.quiet_dapo("train", "--resume", two / "run", "train.num_steps=3")
    assert code == 0, err
    parts = [json.loads(line) for line in (two / "run" / "metrics.jsonl").read_text().splitlines()]
    assert helpers.comparable(parts) == helpers.comparable(whole)


def test_the_doctor_finds_the_engine_right(tmp_path: Path) -> None:
    """Its log-probs against the learner's, through vLLM."""
    recipe = helpers.write_recipe(tmp_path, model=helpers.warm_model(head_dim=32))
    _, out, _ = helpers.quiet_dapo("doctor", recipe, *VLLM)
    assert "pass  engine log-prob = learner log-prob: largest" in out
