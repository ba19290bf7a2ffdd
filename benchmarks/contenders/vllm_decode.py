"""Decoding with vLLM on the CPU, in process.

    PYTHON contenders/vllm_decode.py SPEC.json

The spec: {"model": folder, "dtype": "float32" or "bfloat16", "threads": 2, "prompts": [[token ids], ...],
"lengths": [[tokens of each response], ... one list a prompt], "slots": 64, "seed": 0, "compiled": false} and,
if wanted, "seeded" (true: each request has a seed of its own, so that a response can be repeated; false: one
generator for all), "block_size" (32: prompts shorter than vLLM's 128 are shared by their responses too),
"kv_cache_gb" (2) and "openmp" ("intel": the library that vLLM advises, where it is installed; "gnu").

In the measured time: handing in every request, prefill, decoding with the log-probability of each token, until
the last request ends. Out of it: loading, one small warm-up, and emptying the prefix cache before each round.
The responses of one prompt are requests of their own, as a trainer submits them that wants each when it ends.
"""

from __future__ import annotations

import glob
import os
import sys
import time
from typing import Any

from serve import claim_stdout, read_spec, serve, use_threads


def libraries(openmp: str) -> list[str]:
    """The shared libraries to run under: without one, vLLM warns that a single core is well used."""
    pattern = {"intel": "lib/libiomp5.so", "gnu": "lib/python3*/site-packages/torch/lib/libgomp.so.1"}
    found = [file for name in (openmp, "gnu") for file in glob.glob(os.path.join(sys.prefix, pattern[name]))]
    return found[:1]


def make_engine(spec: dict[str, Any]) -> Any:
    """An engine in this process that can hold every request of the spec."""
    from vllm import EngineArgs, LLMEngine

    longest = max(len(prompt) + max(lengths) for prompt, lengths in zip(spec["prompts"], spec["lengths"], strict=True))
    window = longest + 1
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=spec["model"],
            dtype=spec["dtype"],
            seed=spec["seed"],
            max_model_len=window,
            max_num_seqs=spec["slots"],
            max_num_batched_tokens=max(8192, window),
            enable_chunked_prefill=False,  # a prompt that is split crashes when its request has a seed
            block_size=spec.get("block_size", 32),
            enforce_eager=not spec["compiled"],
            disable_log_stats=True,
        )
    )


def decode(engine: Any, spec: dict[str, Any], lengths: list[list[int]]) -> int:
    """Submits every response of every prompt, steps until all end, and returns how many tokens they have."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    number = 0
    for prompt, wanted in zip(spec["prompts"], lengths, strict=True):
        for length in wanted:
            parameters = SamplingParams(
                temperature=1.0,
                max_tokens=length,
                ignore_eos=True,
                logprobs=0,
                seed=spec["seed"] + number if spec.get("seeded", True) else None,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            engine.add_request(str(number), {"prompt_token_ids": prompt}, parameters)
            number += 1
    tokens = 0
    while engine.has_unfinished_requests():
        tokens += sum(len(output.outputs[0].token_ids) for output in engine.step() if output.finished)
    return tokens


def main() -> None:
    """Loads, warms up and serves."""
    spec = read_spec()
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_CPU_KVCACHE_SPACE=str(spec.get("kv_cache_gb", 2)),
        VLLM_NO_USAGE_STATS="1",
    )
    use_threads(spec["threads"], libraries(spec.get("openmp", "intel")))
    claim_stdout()
    import torch
    import vllm

    torch.set_num_threads(spec["threads"])
    engine = make_engine(spec)

    def play() -> dict[str, Any]:
        engine.reset_prefix_cache()
        start = time.perf_counter()
        tokens = decode(engine, spec, spec["lengths"])
        seconds = time.perf_counter() - start
        expected = sum(map(sum, spec["lengths"]))
        if tokens != expected:
            raise RuntimeError(f"{tokens} tokens came back, not {expected}")
        return {"seconds": seconds, "tokens": tokens}

    decode(engine, spec, [[min(length, 4) for length in lengths] for lengths in spec["lengths"]])
    versions = {"vllm": vllm.__version__, "torch": torch.__version__}
    serve({**versions, "threads": torch.get_num_threads(), "preload": os.environ.get("LD_PRELOAD", "")}, play)


if __name__ == "__main__":
    main()
