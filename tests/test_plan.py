"""dapo plan: dimensions, memory, draws, rates, and what it answers to nonsense."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import helpers_run as helpers
import tiny
from dapo.config import load_config
from dapo.config.schema import Config
from dapo.difficulty import PromptRecord
from dapo.errors import ModelError, UserError
from dapo.learner import torch_learner
from dapo.learner.lora import LoraSettings
from dapo.plan import memory
from dapo.plan.draws import PassRates, RateShare, mean_acceptance, plan_draws, short_of, uniform_rates
from dapo.plan.fits import mends
from dapo.plan.gguf import read_header
from dapo.plan.layout import lay_out
from dapo.plan.measured import decode_speed, learn_speed, read_run
from dapo.plan.models import KNOWN, find_shape, known_shape
from dapo.plan.shapes import of_config
from dapo.plan.speed import Decode, derived_decode, work
from dapo.rollout import slot_cache, torch_engine

SHAPE = KNOWN["Qwen/Qwen2.5-7B"]
H100 = memory.Machine(gib=79.1, compute_bytes=2, overhead=1.5)
CPU = memory.Machine(gib=16, compute_bytes=4, overhead=0.0, cpu=True)


def planned(*words: str) -> Any:
    """`dapo plan` of these words, its JSON."""
    code, out, err = helpers.quiet_dapo("plan", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def refused(*words: str) -> str:
    """The one line that these words are answered with."""
    code, out, err = helpers.quiet_dapo("plan", *words)
    assert code == 2, (out, err)
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


# --- dimensions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
        ("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-32B", 32_763_876_352),
        ("Qwen/Qwen3-4B-Base", 4_022_468_096),
        ("Qwen/Qwen3-30B-A3B-Base", 30_532_122_624),
        ("deepseek-ai/deepseek-math-7b-instruct", 6_910_365_696),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
    ],
)
def test_known_dimensions_make_the_published_number_of_weights(name: str, weights: int) -> None:
    """The number that the hub gives for each model's safetensors."""
    shape = known_shape(name)
    assert shape is not None
    assert shape.total == weights


def test_every_recipe_has_a_model_that_is_known() -> None:
    """So that it can be planned offline."""
    from dapo.config.load import recipe_names

    for name in recipe_names():
        path = load_config(name).model.path
        assert path.startswith("pkg:") or known_shape(path) is not None, path


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_folder_s_config_makes_the_model_s_own_number_of_weights(tmp_path: Path, tied: bool, kv_heads: int) -> None:
    """Against torch's count."""
    folder = tiny.folder(tmp_path / "model", tied=tied, kv_heads=kv_heads)
    model = tiny.model(tied=tied, kv_heads=kv_heads)
    config = load_config("tiny", {"model.path": str(folder)})
    shape = find_shape(config.model, {})
    assert shape.total == sum(parameter.numel() for parameter in model.parameters())
    inner = sum(p.numel() for p in model.model.layers.parameters())
    assert shape.layers * shape.block == inner


def test_random_tiny_is_what_it_is_said_to_be() -> None:
    """The table against the folder that is written."""
    from dapo.model.random import write_tiny

    assert callable(write_tiny)
    from dapo.model.paths import random_folder

    written = of_config(json.loads((random_folder() / "config.json").read_text()), "")
    known = KNOWN["random:tiny"]
    assert (written.total, written.kv_numbers) == (known.total, known.kv_numbers)


def gguf(path: Path, *, version: int = 3, tensors: int | None = None, cut: int = 0, fields: bool = True) -> Path:
    """A GGUF file of the tiny Llama's header: two layers, an untied head, and an array of strings to skip."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    counts = {
        "block_count": 2,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    entries = [string("general.architecture") + struct.pack("<I", 8) + string("llama")]
    entries += [string(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in counts.items() if fields]
    words = b"".join(map(string, ["a", "bc"]))
    entries.append(string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + words)
    entries.append(string("tokenizer.ggml.scores") + struct.pack("<IIQff", 9, 6, 2, 0.5, 1.0))
    shapes = [string(name) + struct.pack("<IQQIQ", 2, 32, 53, 0, 0) for name in ("token_embd.weight", "output.weight")]
    head = b"GGUF" + struct.pack("<IQQ", version, len(shapes) if tensors is None else tensors, len(entries))
    data = head + b"".join(entries) + b"".join(shapes)
    path.write_bytes(data[: len(data) - cut])
    return path


def test_a_gguf_header_is_read(tmp_path: Path) -> None:
    """Without its weights; 53 tokens of the embedding, an output matrix of its own."""
    shape = read_header(gguf(tmp_path / "m.gguf"))
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.vocabulary) == (2, 32, 4, 2, 53)
    assert not shape.tied


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"cut": 5}, "ends too early"),
        ({"version": 1}, "version 1"),
        ({"tensors": 2**40}, "a count of"),
        ({"fields": False}, "is no count"),
    ],
    ids=["cut", "version", "huge", "fields"],
)
def test_a_broken_gguf_is_refused(tmp_path: Path, broken: dict[str, Any], said: str) -> None:
    """In one line; nothing is allocated for what a header claims."""
    with pytest.raises(ModelError, match=said):
        read_header(gguf(tmp_path / "m.gguf", **broken))


@settings(max_examples=100, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_no_gguf(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    """Whatever follows the magic."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    path.write_bytes(b"GGUF" + noise)
    with pytest.raises(ModelError):
        read_header(path)


# --- memory -----------------------------------------------------------------------------------------


def parts(config: Config, shape: Any = SHAPE, machine: memory.Machine = H100, gpus: int = 1) -> dict[str, float]:
    """Bytes by part, of all kinds of device."""
    found = memory.devices(config, shape, lay_out(config, gpus), machine)
    return {part.name: part.gib * memory.GIB for one in found for part in one.parts}


def test_what_is_copied_from_other_rooms_is_what_they_have() -> None:
    """Their modules load torch, so the figures stand in plan.memory again."""
    assert memory.KEPT_LOGITS == torch_learner.KEPT_LOGITS
    assert memory.ROW_BLOCK == torch_engine.ROW_BLOCK
    assert memory.READ_BLOCK == slot_cache.READ_BLOCK


def test_the_cache_is_as_large_as_the_engine_s(tmp_path: Path) -> None:
    """Against the tensors that the embedded engine allocates: 20 slots are 24, 16 + 5 positions are 64."""
    config = load_config(
        "tiny",
        {
            "engine.slots": 20,
            "data.max_prompt_tokens": 16,
            "sampling.max_response_tokens": 5,
            "model.path": str(tiny.folder(tmp_path / "model")),
        },
    )
    engine = torch_engine.TorchEngine(tiny.model(), eos_ids=[1], slots=20, max_tokens=21)
    held = sum(tensor.numel() * 4 for tensor in (*engine._cache.keys, *engine._cache.values))
    assert parts(config, find_shape(config.model, {}), CPU)["KV cache"] == held


def test_weights_gradients_and_moments() -> None:
    """4 bytes each, the moments twice; the engine's copy in bfloat16, and autocast's of every matrix."""
    found = parts(load_config("math-7b-8gpu", {"learner.kind": "torch", "cluster.kind": "local"}))
    total = SHAPE.total
    assert found["weights"] == found["gradients"] == 4 * total
    assert found["optimiser"] == 8 * total
    assert found["engine weights"] == 2 * total
    assert found["autocast copies"] == pytest.approx(2 * (total - SHAPE.head), rel=1e-6)


def test_adapters_train_what_lora_trains(tmp_path: Path) -> None:
    """Against the numbers of A and B in a real model, for both kinds of targets."""
    from dapo.learner.lora import adapter_size

    config = load_config("tiny", {"model.path": str(tiny.folder(tmp_path / "model"))})
    shape = find_shape(config.model, {})
    for targets in ("all-linear", "attention"):
        lora = load_config("tiny", {"learner.lora_rank": 4, "learner.lora_targets": targets})
        settings_ = LoraSettings.of(lora)
        assert settings_ is not None
        assert memory.trained_weights(lora, shape) == adapter_size(tiny.model(), settings_)
    found = parts(load_config("math-7b-8gpu", {"learner.lora_rank": 16, "cluster.kind": "local"}))
    assert found["optimiser"] < 0.02 * found["weights"]


def test_ranks_divide_what_they_shard_and_gather_what_they_compute() -> None:
    """8 ranks hold an eighth each; a block and the root are gathered, or all of it."""
    words = {"cluster.kind": "ray", "cluster.learner_ranks": 8, "cluster.engines": 1}
    sharded = parts(load_config("math-7b-8gpu", words), gpus=9)
    whole = parts(load_config("math-7b-8gpu", {"cluster.kind": "local", "learner.kind": "torch"}))
    for name in ("weights", "gradients", "optimiser"):
        assert sharded[name] == pytest.approx(whole[name] / 8)
    kept = parts(load_config("math-7b-8gpu", words | {"learner.fsdp.reshard_after_forward": False}), gpus=9)
    assert sharded["gathered weights"] < kept["gathered weights"]
    assert kept["gathered weights"] == pytest.approx(2 * (SHAPE.total + SHAPE.block))
    offloaded = parts(load_config("math-7b-8gpu", words | {"learner.fsdp.cpu_offload": True}), gpus=9)
    assert offloaded["weights"] == offloaded["optimiser"] == 0


def test_a_reference_is_there_only_for_a_kl() -> None:
    """In float32."""
    assert "reference model" not in parts(load_config("dapo"))
    kl = load_config("tiny", {"algorithm.kl": {"place": "loss", "coef": 0.1}})
    assert parts(kl, KNOWN["random:tiny"], CPU)["reference model"] == 4 * KNOWN["random:tiny"].total


def test_checkpointing_keeps_inputs_of_layers_alone() -> None:
    """4 H bytes a layer and token, and one layer whole."""
    with_it = parts(
        load_config("quickstart", {"train.gradient_checkpointing": True}), KNOWN["HuggingFaceTB/SmolLM2-135M"]
    )
    without = parts(load_config("quickstart"), KNOWN["HuggingFaceTB/SmolLM2-135M"])
    config = load_config("quickstart")
    each = memory.activation_bytes(config, KNOWN["HuggingFaceTB/SmolLM2-135M"], 2)
    tokens = memory.microbatch_tokens(config)
    assert tokens == 1024
    assert without["activations"] == pytest.approx(tokens * 30 * each)
    assert with_it["activations"] == pytest.approx(tokens * (30 * 4 * 576 + each))


def test_a_microbatch_is_the_budget_a_row_over_it_or_the_whole_mini_batch() -> None:
    """Quickstart: 8 prompts of 64 and 64 responses of 12 are 1280, over its 1024."""
    assert (
        memory.microbatch_tokens(load_config("quickstart", {"train.tokens_per_microbatch": 5000})) == 8 * 64 + 64 * 12
    )
    assert memory.microbatch_tokens(load_config("quickstart", {"train.tokens_per_microbatch": 10})) == 64 + 12
    padded = load_config("quickstart", {"train.tokens_per_microbatch": 50_000, "train.packing": "padded"})
    assert memory.microbatch_tokens(padded) == 64 * (64 + 12)


def test_logits_are_kept_up_to_a_bound_and_made_again_beyond() -> None:
    """2^28 / 49152 = 5461 tokens."""
    shape = KNOWN["HuggingFaceTB/SmolLM2-135M"]
    small = parts(load_config("quickstart"), shape, CPU)["logits"]
    tokens = memory.response_tokens(load_config("quickstart"))
    assert small == 4 * 49152 * (tokens + min(tokens, 1024))
    large = load_config(
        "quickstart",
        {"train.tokens_per_microbatch": 20_000, "sampling.prompts_per_step": 256, "sampling.max_rounds": 100},
    )
    assert parts(large, shape, CPU)["logits"] == 3 * 4 * 49152 * 1024


@pytest.mark.parametrize("name", ["gsm8k-0.5b-1gpu", "math-1.5b-lora-24gb", "math-7b-8gpu"])
def test_mends_fit_and_are_allowed(name: str) -> None:
    """Each that is named makes it fit; one GiB less than the best peak shows none of the same."""
    config = load_config(name, {"cluster.kind": "local", "learner.kind": "torch"})
    shape = find_shape(config.model, {})
    layout = lay_out(config, 1)
    peak = max(one.peak for one in memory.devices(config, shape, layout, H100))
    tight = memory.Machine(gib=peak - 0.2, compute_bytes=2, overhead=1.5)
    found = mends(config, shape, layout, tight)
    assert found
    for mend in found:
        changed = load_config(name, {"cluster.kind": "local", "learner.kind": "torch"}, *mend.words)
        after = max(one.peak for one in memory.devices(changed, shape, lay_out(changed, 1), tight))
        assert after == pytest.approx(mend.peak)
        assert after <= tight.gib
    roomy = memory.Machine(gib=peak + 0.1, compute_bytes=2, overhead=1.5)
    assert mends(config, shape, layout, roomy) == []


def test_what_can_only_be_sharded_is_sharded() -> None:
    """32 billion weights on one of 128 devices: 16 bytes each are 488 GiB."""
    found = planned("dapo-paper", "--gpus", "128", "--gpu", "h100")
    assert not found["fits"]
    assert found["memory"][0]["peak_gib"] > 16 * 32.7e9 / memory.GIB
    words = found["mends"][0]["words"]
    assert 'cluster.kind="ray"' in words
    assert planned("dapo-paper", *words, "--gpus", "128", "--gpu", "h100")["fits"]


# --- draws ------------------------------------------------------------------------------------------


def of_rates(*rates: float) -> PassRates:
    """Problems of these pass rates."""
    return PassRates(shares=tuple(RateShare(1 / len(rates), rate) for rate in rates), source="test")


def test_expected_draws_are_n_over_the_mean_acceptance() -> None:
    """Derivation: half the prompts have q = 0.5, half q = 0.01, G = 16.

    a(0.5) = 1 - 2 x 0.5^16 = 0.999969; a(0.01) = 1 - 0.99^16 = 0.148542; mean 0.574256. Every draw picks a prompt
    anew and is kept with probability 0.574256, so 512 kept ones take 512 / 0.574256 = 891.59 draws. N times the mean
    of 1 / a would be 512 x (1.00003 + 6.73210) / 2 = 1979.4: more than twice as many.
    """
    acceptance, size, kept_size = mean_acceptance(of_rates(0.5, 0.01), 16)
    assert acceptance == pytest.approx(0.574256, abs=1e-6)
    draws = plan_draws(load_config("dapo").sampling, acceptance, size, kept_size)
    assert draws.taken == pytest.approx(891.59, abs=0.01)
    assert pytest.approx(1979.4, abs=0.1) == 512 * (1 / 0.999969 + 1 / 0.148542) / 2


def test_ten_rounds_of_1536_suffice_for_512_only_over_a_thirtieth() -> None:
    """512 / (10 x 1536) = 1/30 = 3.33%. There it is even odds; 10% above it is sure and 10% below it hopeless.

    The sd of the kept of 15360 draws is sqrt(15360 x 1/30 x 29/30) = 22.2, so 51 groups either way are 2.3 sd.
    """
    sampling = load_config("dapo-verl-4f80e46").sampling
    assert (sampling.gen_prompts, sampling.max_rounds, sampling.prompts_per_step) == (1536, 10, 512)
    at = plan_draws(sampling, 1 / 30, 16, 16)
    assert at.least_acceptance == pytest.approx(1 / 30)
    assert at.exhausted == pytest.approx(0.49, abs=0.02)
    assert plan_draws(sampling, 1.1 / 30, 16, 16).exhausted < 0.02
    assert plan_draws(sampling, 0.9 / 30, 16, 16).exhausted > 0.98


def test_rounds_by_hand() -> None:
    """N = 2 from rounds of 2 at A = 1/2, at most 3: full after one 1/4, after two 1 - 5/16, after three 1 - 7/64.

    P(K(4) < 2) = (1 + 4) / 16, P(K(6) < 2) = (1 + 6) / 64. Mean rounds 1 + 3/4 + 5/16 = 2.0625; draws made 4.125.
    """
    sampling = load_config(
        "tiny",
        {
            "sampling.prompts_per_step": 2,
            "sampling.gen_prompts": 2,
            "sampling.max_rounds": 3,
            "train.updates_per_step": 1,
        },
    ).sampling
    draws = plan_draws(sampling, 0.5, 8, 8)
    assert draws.by_rounds == pytest.approx((1 / 4, 11 / 16, 57 / 64))
    assert (draws.rounds, draws.made, draws.taken) == pytest.approx((2.0625, 4.125, 4))
    assert draws.exhausted == pytest.approx(7 / 64)


@settings(max_examples=100, deadline=None)
@given(wanted=st.integers(1, 8), draws=st.integers(0, 20), acceptance=st.floats(0, 1))
def test_falling_short_is_a_binomial_sum(wanted: int, draws: int, acceptance: float) -> None:
    """Against the sum itself."""
    total = sum(
        math.comb(draws, k) * acceptance**k * (1 - acceptance) ** (draws - k) for k in range(min(wanted, draws + 1))
    )
    assert short_of(wanted, draws, acceptance) == pytest.approx(total, abs=1e-9)


def test_uniform_rates_have_their_integral() -> None:
    """The integral of 1 - q^G - (1 - q)^G over 0 to 1 is 1 - 2 / (G + 1)."""
    for size in (2, 8, 16):
        assert mean_acceptance(uniform_rates(), size)[0] == pytest.approx(1 - 2 / (size + 1), abs=1e-3)


def test_adaptive_groups_weigh_into_sizes() -> None:
    """q = 1 gets 4 of 16 and is never kept; q = 1/4 gets round(4 + 12 x 3/4) = 13."""
    acceptance, size, kept_size = mean_acceptance(of_rates(1.0, 0.25), 16, 4)
    assert (size, kept_size) == ((4 + 13) / 2, 13)
    assert acceptance == pytest.approx((1 - 0.25**13 - 0.75**13) / 2)


def test_counts_behind_a_rate_predict_without_bias() -> None:
    """2 responses, one right, G = 2: 1 - (0 + 0) / 1 = 1, not 1/2."""
    rates = PassRates(shares=(RateShare(1.0, 0.5, PromptRecord(draws=1, responses=2, right=1)),), source="")
    assert mean_acceptance(rates, 2)[0] == 1.0


@pytest.mark.parametrize(
    ("name", "text", "acceptance"),
    [
        ("a.json", '{"0": 1, "0.5": 1, "1": 2}', 0.25 * 0.5),
        ("b.jsonl", '{"pass_rate": 0.5}\n{"pass_rate": null}\n{"pass_rate": 0}\n', 0.25),
        ("c.csv", "problem,pass_rate\nx,0.5\ny,1.0\n", 0.25),
        ("d.json", '[{"pass_rate": 0.5, "pass_right": 1, "pass_responses": 2}]', 1.0),
    ],
    ids=["histogram", "lines", "table", "counts"],
)
def test_pass_rates_of_a_file(tmp_path: Path, name: str, text: str, acceptance: float) -> None:
    """a(0.5) at G = 2 is 1/2."""
    file = tmp_path / name
    file.write_text(text)
    found = planned("tiny", "--gpu-memory", "8", "sampling.responses_per_prompt=2", "--pass-rates", str(file))
    assert found["draws"]["acceptance"] == pytest.approx(acceptance)


# --- rates ------------------------------------------------------------------------------------------


def test_work_by_hand() -> None:
    """One group of 2 responses of 10 tokens behind a prompt of 4, shared or not."""
    shape = KNOWN["random:tiny"]
    attention = 4 * 2 * 4 * 16
    shared = work(shape, 1, 2, 4, 10, 100, shared=True, backward=2, passes=1)
    assert shared.tokens == 24
    assert shared.forward == 2 * (shape.multiplied * 24 + shape.head * 20) + attention * (8 + 2 * (40 + 50))
    apart = work(shape, 1, 2, 4, 10, 100, shared=False, backward=2, passes=1)
    assert apart.tokens == 28


def test_a_decode_step_is_bounded_by_reading_or_by_multiplying() -> None:
    """7 billion weights in bfloat16 at 1 TB/s: 14 ms; at 100 TFLOP/s a row takes 141 us, so 100 rows are about even."""
    import numpy as np

    from dapo.plan.lengths import Lengths

    lengths = Lengths(np.array([100]), "")
    decode = derived_decode(SHAPE, lengths, 10, flops=1e14, bandwidth=1e12, bytes_each=2, block=1)
    weights = SHAPE.multiplied + SHAPE.head
    assert decode.linear(1) == decode.linear(90) == pytest.approx(2 * weights / 1e12)
    assert decode.linear(200) == pytest.approx(200 * 2 * weights / 1e14)
    assert decode.cached == pytest.approx(2 * 28 * 4 * 128 * 2 / 1e12)
    assert decode.rate(1, 0) == pytest.approx(1e12 / (2 * weights))


def made_run(path: Path, lines: list[dict[str, Any]], profile: list[dict[str, Any]] | None = None) -> Path:
    """A run directory of recipe tiny with these lines."""
    from dapo.config import resolve

    path.mkdir()
    (path / "config.resolved.json").write_text(json.dumps(resolve(load_config("tiny"))))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if profile is not None:
        (path / "profile.jsonl").write_text("".join(json.dumps(line) + "\n" for line in profile))
    return path


def step(number: int, **more: float) -> dict[str, Any]:
    """A line: 16 of 32 draws of 8 responses kept, 4 tokens each."""
    line = {
        "step": number,
        "sampling/draws": 32.0,
        "sampling/kept": 16.0,
        "tokens/generated": 1024.0,
        "tokens/kept": 512.0,
        "time/rollout_s": 2.0,
        "time/train_s": 3.0,
        "time/grade_s": 0.256,
        "time/step_s": 6.0,
    }
    return line | {name.replace("__", "/"): value for name, value in more.items()}


def test_rates_of_a_run_without_a_profile(tmp_path: Path) -> None:
    """2 s for 1024 tokens; 0.256 s of grading for 256 responses; 6 - 2 - 3 - 0.256 s of other work."""
    run = read_run(str(made_run(tmp_path / "run", [step(1), step(2)])))
    decode, how = decode_speed([run])
    assert decode.row == pytest.approx(2 / 1024)
    assert "--profile" in how
    learn, _ = learn_speed([run], KNOWN["random:tiny"], 16)
    assert learn.grade == pytest.approx(0.001)
    assert learn.other == pytest.approx(0.744)
    done = work(KNOWN["random:tiny"], 16, 8, 16, 4, 16, shared=True, backward=2, passes=0)
    assert sum(done.seconds(learn, 2)) == pytest.approx(3.0)


def test_rates_of_a_profiled_run_tell_a_step_from_its_rows(tmp_path: Path) -> None:
    """Lines made of 10 ms a step and 1 ms a row: 100 steps of 64 rows, 100 of 8; both come back."""
    lines, spans = [], []
    for number, rows in ((1, 64), (2, 8)):
        decoded = 100 * rows
        lines.append(step(number, tokens__generated=decoded + 256.0))
        seconds = 100 * (0.010 + 0.001 * rows)
        own = {"decode": {"seconds": seconds, "calls": 100}, "prefill": {"seconds": 3.2, "calls": 32}}
        own |= {name: {"seconds": 1.0, "calls": 2} for name in ("forward", "backward", "optimiser", "sync")}
        spans.append({"step": number, "spans": own})
    run = read_run(str(made_run(tmp_path / "run", lines, spans)))
    decode, _ = decode_speed([run])
    assert (decode.fixed, decode.row, decode.prefill) == pytest.approx((0.010, 0.001, 0.1))
    assert decode.block == 8
    learn, _ = learn_speed([run], KNOWN["random:tiny"], 16)
    assert learn.sync == pytest.approx(0.5)
    assert [s.number for s in read_run(str(run.name), until=1).steps] == [1]


# --- the command ------------------------------------------------------------------------------------


def test_a_plan_says_where_everything_comes_from() -> None:
    """Tables on stdout; every assumption with one of four kinds of source."""
    code, out, err = helpers.quiet_dapo("plan", "math-7b-8gpu", "--gpus", "8", "--gpu", "h100", "--price", "2.5")
    assert code == 0, err
    for title in ("memory of a device", "draws of a step", "what this rests on"):
        assert title in out
    found = planned("math-7b-8gpu", "--gpus", "8", "--gpu", "h100", "--price", "2.5")
    kinds = {one["source"].split(":")[0] for one in found["assumptions"]}
    assert kinds <= {
        "measured",
        "stated",
        "derived",
        "default",
        "left out",
        "built-in table, as the model's published config.json has it",
    }


def test_money_and_hours_are_the_step_s() -> None:
    """Device hours of all devices that are paid for, times the price; idle ones too."""
    found = planned(
        "tiny",
        "--gpus",
        "2",
        "--gpu-memory",
        "8",
        "--decode-tokens-per-s",
        "1000",
        "--train-tokens-per-s",
        "500",
        "--price",
        "3",
    )
    assert found["run_s"] == pytest.approx(12 * found["step_s"])
    assert found["device_hours"] == pytest.approx(2 * found["run_s"] / 3600)
    assert found["money"] == pytest.approx(3 * found["device_hours"])
    assert any("1 of 2 devices are idle" in note for note in found["notes"])


def test_a_plan_is_a_function_of_its_seed() -> None:
    """Twice the same; another seed another sample of draws."""
    words = ("quickstart", "--cpu", "--gpu-memory", "8", "--decode-tokens-per-s", "100", "--train-tokens-per-s", "50")
    assert planned(*words) == planned(*words)
    assert planned(*words)["schedules"] != planned(*words, "--seed", "7")["schedules"]


def test_without_rates_there_are_no_times() -> None:
    """And it says what would give them."""
    found = planned("tiny", "--gpu-memory", "8")
    assert found["step_s"] is None
    assert found["schedules"] == []
    assert any("--decode-tokens-per-s" in note for note in found["notes"])


def test_filter_off_keeps_every_draw() -> None:
    """Whatever the pass rates."""
    words = (
        "tiny",
        "--gpu-memory",
        "8",
        "sampling.filter=off",
        "sampling.gen_prompts=off",
        "--decode-tokens-per-s",
        "1000",
        "--train-tokens-per-s",
        "500",
    )
    found = planned(*words)
    assert found["draws"]["acceptance"] == 1
    assert found["draws"]["rounds"] == 1
    assert all(one["wasted"] == 0 for one in found["schedules"] if not one["reason"])


def test_nonzero_std_says_that_pass_rates_may_tell_too_little() -> None:
    """A note."""
    found = planned("tiny", "--gpu-memory", "8", "sampling.filter=nonzero_std")
    assert any("nonzero_std" in note for note in found["notes"])


def test_what_is_not_planned_is_said(tmp_path: Path) -> None:
    """Carried surplus, a curriculum, rates of another model."""
    run = made_run(tmp_path / "run", [step(1)])
    words = (
        "sampling.surplus=carry",
        "sampling.max_staleness=1",
        "algorithm.old_logprobs=learner",
        "algorithm.importance_cap=2",
        "sampling.skip_solved_after=2",
        "model.path=Qwen/Qwen2.5-0.5B",
        "--measured",
        str(run),
    )
    notes = "\n".join(planned("tiny", "--gpu-memory", "80", *words)["notes"])
    assert 'sampling.surplus = "carry" is planned as "discard"' in notes
    assert "sampling.skip_solved_after is not planned" in notes
    assert "rates are of another model.path: " in notes


def test_nothing_informative_never_fills(tmp_path: Path) -> None:
    """All problems solved: no times, no end of draws, and still valid JSON."""
    (tmp_path / "all.json").write_text('{"1": 5}')
    found = planned(
        "tiny",
        "--gpu-memory",
        "8",
        "--pass-rates",
        str(tmp_path / "all.json"),
        "--decode-tokens-per-s",
        "9",
        "--train-tokens-per-s",
        "9",
    )
    assert found["draws"]["taken"] is None
    assert found["draws"]["exhausted"] == 1
    assert found["step_s"] is None
    code, out, _ = helpers.quiet_dapo("plan", "tiny", "--gpu-memory", "8", "--pass-rates", str(tmp_path / "all.json"))
    assert code == 0
    assert "no end" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiny"], "--gpu-memory"),
        (["tiny", "--gpu-memory", "0"], "a number over 0"),
        (["tiny", "--gpu-memory", "nan"], "a number over 0"),
        (["tiny", "--gpu-memory", "inf"], "a number over 0"),
        (["tiny", "--gpu-memory", "much"], "not a number"),
        (["tiny", "--gpu-memory", "8", "--gpus", "0"], "--gpus"),
        (["tiny", "--gpu-memory", "8", "--gpus", "999999999"], "--gpus"),
        (["tiny", "--gpu-memory", "8", "--acceptance", "0"], "a number over 0"),
        (["tiny", "--gpu-memory", "8", "--acceptance", "1.5"], "up to 1"),
        (["tiny", "--gpu-memory", "8", "--price", "-1"], "--price"),
        (["tiny", "--gpu-memory", "8", "--price", "nan"], "--price"),
        (["tiny", "--gpu-memory", "8", "--grade-ms", "nan"], "--grade-ms"),
        (["tiny", "--gpu", "abacus"], "not in the table"),
        (["tiny", "--gpu", "h100", "--cpu"], "exclude each other"),
        (["tiny", "--gpu-memory", "8", "--measured", "nowhere"], "no run directory"),
        (["tiny", "--gpu-memory", "8", "--until", "3"], "--until goes with --measured"),
        (["tiny", "--gpu-memory", "8", "--pass-rates", "nowhere.json"], "no such file"),
        (["tiny", "--gpu-memory", "8", "--response-tokens", "5"], "from 1 to sampling.max_response_tokens = 4"),
        (["tiny", "--gpu-memory", "8", "--prompt-tokens", "500"], "data.max_prompt_tokens = 32"),
        (["tiny", "--gpu-memory", "8", "sampling.responses_per_prompt=1"], "a group of one"),
        (["tiny", "--gpu-memory", "8", "model.path=./nowhere"], "no such folder"),
        (["tiny", "--gpu-memory", "8", "model.path=random:huge"], "no such folder"),
        (["tiny", "--gpu-memory", "8", "--layers", "99999999999"], "--layers"),
        (["tiny", "--gpu-memory", "8", "cluster.kind=ray", "cluster.engines=4"], "ask for 5 devices"),
        (["math-7b-8gpu"], "--gpu-memory"),
        ([], "name a recipe"),
        (
            [
                "tiny",
                "--gpu-memory",
                "8",
                "--acceptance",
                "1e-9",
                "sampling.max_rounds=1000000",
                "--decode-tokens-per-s",
                "9",
                "--train-tokens-per-s",
                "9",
            ],
            "are simulated",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_nonsense_is_answered_in_one_line(words: list[str], said: str) -> None:
    """It names the flag or the field."""
    assert said in refused(*words)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"2": 1}', "a pass rate from 0 to 1"),
        ("a.json", '{"0.5": -1}', "a number of 0 or more"),
        ("a.json", '{"0.5": NaN}', "a number of 0 or more"),
        ("a.json", '{"0.5": 0}', "add up to 0"),
        ("a.json", "{}", "no column pass_rate"),
        ("a.json", "[]", "no rows in it"),
        ("a.json", "not json", "not valid JSON"),
        ("a.jsonl", '{"rate": 1}', "no column pass_rate; this row has rate"),
        ("a.csv", "pass_rate\nhalf\n", "'half'"),
        ("a.txt", "0.5", "use a folder"),
        ("a.parquet", "no parquet", "not a readable parquet file"),
    ],
)
def test_wrong_files_of_pass_rates(tmp_path: Path, name: str, text: str, said: str) -> None:
    """One line each."""
    (tmp_path / name).write_text(text)
    assert said in refused("tiny", "--gpu-memory", "8", "--pass-rates", str(tmp_path / name))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"step": 1}, "no finished step"),
        (step(1) | {"tokens/generated": None}, "no tokens/generated"),
        (step(1, time__train_s=0.0), "no time/train_s"),
        ({"step": 0, "eval/accuracy": 1}, "no finished step"),
    ],
)
def test_runs_that_can_t_be_measured_by(tmp_path: Path, line: dict[str, Any], said: str) -> None:
    """They name what is missing."""
    run = made_run(tmp_path / "run", [line])
    assert said in refused("tiny", "--gpu-memory", "8", "--measured", str(run))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{}", "num_attention_heads|hidden_size"),
        ('{"hidden_size": 8, "num_attention_heads": true}', "num_attention_heads = True"),
        ('{"hidden_size": 1e400}', "hidden_size"),
        ("[1]", "a JSON object"),
        ("{", "can't be read"),
    ],
)
def test_a_model_s_config_that_says_too_little(tmp_path: Path, config: str, said: str) -> None:
    """The line names the field, and how to state it by hand."""
    (tmp_path / "config.json").write_text(config)
    told = refused("tiny", "--gpu-memory", "8", f"model.path={tmp_path}")
    assert any(part in told for part in said.split("|"))


def test_dimensions_by_hand_need_no_model() -> None:
    """All of them, or some over what is known."""
    words = [
        "--layers",
        "2",
        "--hidden",
        "64",
        "--intermediate",
        "128",
        "--heads",
        "4",
        "--kv-heads",
        "2",
        "--vocabulary",
        "53",
    ]
    found = planned("tiny", "--gpu-memory", "8", "model.path=some/model", *words)
    assert found["model"]["total"] == 77_440
    assert planned("tiny", "--gpu-memory", "8", "--params", "1000000")["model"]["total"] == 1_000_000


def test_a_plan_loads_no_torch() -> None:
    """It answers at once, and without a GPU stack."""
    import os
    import subprocess
    import sys

    import dapo

    code = (
        "import sys\nfrom dapo.cli import main\n"
        "try:\n    main(['plan', 'quickstart', '--gpu', 'h100'])\nexcept SystemExit:\n    pass\n"
        "found = {'torch', 'transformers'} & {name.split('.')[0] for name in sys.modules}\n"
        "print('heavy', sorted(found), file=sys.stderr)"
    )
    source = str(Path(dapo.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "is not installed" in done.stderr:
        pytest.skip("the quickstart's model is not installed")
    assert done.stderr.splitlines()[-1] == "heavy []"
    assert "draws of a step" in done.stdout


def test_a_layout_that_asks_for_too_much_is_refused() -> None:
    """Naming what asks."""
    config = load_config("tiny", {"cluster.kind": "ray", "cluster.learner_ranks": 6, "cluster.engines": 3})
    with pytest.raises(UserError, match=r"cluster\.learner_ranks = 6 x 1 and cluster\.engines = 3 x 1 ask for 9"):
        lay_out(config, 8)
    assert lay_out(config, 10).idle == 1


def test_decode_is_what_its_parts_say() -> None:
    """Sums over steps of a growing cache: 3 rows from 10: 10 + 13 + 16."""
    assert Decode(cached=1.0).seconds(3, 10, 3) == 39
