"""The embedded engine and the learner on one GPU: tokens per second, utilisation, weight sync, memory.

    sh benchmarks/gpu.sh [--minutes 7] [--rounds 3]
    sh benchmarks/gpu.sh --device cpu --tiny        tries the script itself

Prints one JSON document and writes it to $OUT/gpu.json (default: the current folder), after each part, so that a
run that is stopped leaves what it has. A part that would not fit into --minutes is left out and named there; one
that fails is named with its error, and the others go on. Ends with 0, with 1 if a part failed, with 2 without a GPU.

Utilisation is floating-point operations by convention (see CONVENTIONS) over the seconds, as a share of the rate of
a square bfloat16 product in the same run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

CONVENTIONS = {
    "N": "parameters that multiply: all but the input embedding; the output embedding counts, also where both are one",
    "of_tokens": "training 6 N per response token, decoding 2 N per decoded token",
    "of_positions": "the same per computed position (prompts and padding too), the output embedding per token only",
    "not_counted": "attention over keys and values; logits that are made again in the backward pass",
    "utilisation": "those operations over the median seconds, as a share of the square product's rate in this run",
    "decode": "whole rounds, prefill included; the engine also gives log-probabilities, generate does not",
    "sync_share": "of the seconds of decoding an update's responses, at the rate of the most slots, and of that update",
    "peak_memory_gib": "torch.cuda.max_memory_allocated of the part alone, its models included; null on a CPU",
}
SECTIONS = ("products", "training", "decode", "sync")


@dataclass(frozen=True)
class Part:
    """Something to measure. `needs`: seconds on an H200, guessed high; it is not begun with less time left."""

    section: str
    name: str
    needs: float
    measure: Callable[[], dict[str, Any]]


def parts(bench: Any) -> Iterator[Part]:
    """In the order of what would be missed most."""
    import gpu_parts as of

    sizes = bench.sizes
    yield Part("products", "square", 10, partial(of.square_product, bench))
    for model in sizes.models:
        for packing in ("shared_prompt", "padded"):
            yield Part("training", f"{model}/{packing}", 25, partial(of.train, bench, model, packing))
        for slots in reversed(sizes.slots):
            yield Part("decode", f"{model}/{slots}/engine", 30, partial(of.decode_engine, bench, model, slots))
            yield Part("decode", f"{model}/{slots}/generate", 30, partial(of.decode_generate, bench, model, slots))
            yield Part("products", f"{model}/{slots}/linear_layers", 5, partial(of.linear_layers, bench, model, slots))
        yield Part("sync", model, 15, partial(of.sync_weights, bench, model))


def measure_all(bench: Any, result: dict[str, Any], minutes: float, tiny: bool, save: Callable[[], None]) -> None:
    """Every part that fits, into `result`."""
    for part in parts(bench):
        name = f"{part.section}/{part.name}"
        now = time.perf_counter()
        needs = 1.0 if tiny else part.needs
        if now - STARTED + needs > 60 * minutes:
            result["left_out"].append(name)
            continue
        print(f"{now - STARTED:5.0f} s  {name}", file=sys.stderr, flush=True)
        bench.until = now + needs
        bench.forget()
        try:
            figures = part.measure()
            result[part.section][part.name] = figures | {"peak_memory_gib": bench.peak_gib()}
        except Exception as error:  # one part without memory, say, must not take the others with it
            lines = str(error).strip().splitlines() or [""]
            result["failed"][name] = f"{type(error).__name__}: {lines[0]}"
        result["ratios"] = ratios(result, max(bench.sizes.slots), bench.sizes)
        save()


def ratios(result: dict[str, Any], slots: int, sizes: Any) -> dict[str, Any]:
    """What follows from the parts that were measured."""
    products, training, decode = result["products"], result["training"], result["decode"]
    found: dict[str, Any] = {"utilisation": {}, "engine_to_generate": {}, "engine_of_linear_layers": {}}
    found |= {"shared_to_padded": {}, "sync_share": {}}
    if "square" in products:
        rate = 1e12 * products["square"]["tflops_per_s"]
        for section in ("training", "decode"):
            for name, figures in result[section].items():
                found["utilisation"][f"{section}/{name}"] = {
                    key: figures[f"flops_{key}"] / figures["median_seconds"] / rate
                    for key in ("of_tokens", "of_positions")
                }
    for name, figures in decode.items():
        case, contender = name.rsplit("/", 1)
        if contender != "engine":
            continue
        for key, other in (
            ("engine_to_generate", decode.get(f"{case}/generate")),
            ("engine_of_linear_layers", products.get(f"{case}/linear_layers")),
        ):
            if other:
                found[key][case] = figures["tokens_per_s"] / other["tokens_per_s"]
    for model in sizes.models:
        shared, padded = training.get(f"{model}/shared_prompt"), training.get(f"{model}/padded")
        if shared and padded:
            found["shared_to_padded"][model] = shared["tokens_per_s"] / padded["tokens_per_s"]
        engine, sync = decode.get(f"{model}/{slots}/engine"), result["sync"].get(model)
        if shared and engine and sync:
            step = shared["tokens"] / engine["tokens_per_s"] + shared["median_seconds"]
            found["sync_share"][model] = sync["median_seconds"] / step
    return found


def machine(device: Any) -> dict[str, Any]:
    """What the figures were measured on."""
    import torch
    import transformers

    import dapo

    found: dict[str, Any] = {"device": device.type, "gpu": None, "driver": None, "cuda": torch.version.cuda}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_gib": properties.total_memory / 2**30,
            "multiprocessors": properties.multi_processor_count,
            "driver": driver(),
        }
    return found | {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dapo": dapo.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def driver() -> str | None:
    """The GPU driver's version, where nvidia-smi tells it."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split()
    except subprocess.TimeoutExpired:
        return None
    return said[0] if said else None


def facts(sizes: Any, name: str) -> dict[str, Any]:
    """How large a model is; made without memory."""
    import gpu_parts as of
    import torch

    nowhere = of.Bench(device=torch.device("meta"), sizes=sizes, rounds=1)
    weights = of.count_weights(of.make_model(nowhere, name, of.DTYPE))
    return {"parameters": weights.total, "multiplied": weights.multiplied, "config": sizes.models[name]}


def work(sizes: Any, rounds: int) -> dict[str, Any]:
    """What is done in each part; lengths in tokens."""
    return {
        "dtype": "bfloat16; the learner's master weights and its optimiser float32",
        "rounds": rounds,
        "slots": list(sizes.slots),
        "responses_per_prompt": sizes.responses_per_prompt,
        "prompt": sizes.prompt,
        "decoded": sizes.new,
        "trained_response": sizes.response,
        "trained_responses": sizes.update_rows,
        "microbatch": sizes.microbatch,
    }


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=7.0, help="parts that would not fit are left out (default 7)")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement, at most (default 3)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models and short texts, to try the script itself")
    return parser


def main() -> int:
    """Measures, prints, writes."""
    arguments = options().parse_args()
    if arguments.device == "cpu" and not arguments.tiny:
        print("gpu: the full sizes are for a GPU; on a CPU only with --tiny", file=sys.stderr)
        return 2
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing may be downloaded
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu: torch sees no CUDA device; to try the script without one: --device cpu --tiny", file=sys.stderr)
        return 2
    import gpu_parts

    path = Path(os.environ.get("OUT") or ".") / "gpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = gpu_parts.TINY if arguments.tiny else gpu_parts.GPU
    bench = gpu_parts.Bench(device=torch.device(arguments.device), sizes=sizes, rounds=arguments.rounds)
    result: dict[str, Any] = {
        "benchmark": "gpu",
        "complete": False,
        "machine": machine(bench.device),
        "work": work(sizes, arguments.rounds),
        "conventions": CONVENTIONS,
        "models": {name: facts(sizes, name) for name in sizes.models},
        **{section: {} for section in SECTIONS},
        "ratios": {},
        "left_out": [],
        "failed": {},
    }

    def save() -> None:
        result["seconds"] = time.perf_counter() - STARTED
        path.write_text(json.dumps(rounded(result), indent=1) + "\n", encoding="utf-8")

    gc.freeze()  # what was imported is not searched for garbage between the parts
    measure_all(bench, result, arguments.minutes, arguments.tiny, save)
    result["complete"] = True
    save()
    print(path.read_text(encoding="utf-8"), end="")
    return 1 if result["failed"] else 0


def rounded(value: Any) -> Any:
    """Floats to six digits that count."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
