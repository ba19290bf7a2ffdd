"""Decoding with the embedded engine; the spec is vllm_decode's.

    PYTHON contenders/dapo_decode.py SPEC.json

Responses of one prompt and one length are one draw: its prompt is computed once. In the measured time:
submitting, prefill, decoding with the log-probability of each token, until the last draw ends.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

from serve import claim_stdout, read_spec, serve, use_threads


def main() -> None:
    """Loads, warms up and serves."""
    spec = read_spec()
    use_threads(spec["threads"])
    claim_stdout()
    import numpy as np
    import torch

    from dapo.config.schema import ModelConfig
    from dapo.model.loading import load_model
    from dapo.rollout.torch_engine import TorchEngine
    from dapo.types import Prompt, SamplingParams

    torch.set_num_threads(spec["threads"])
    dtype = getattr(torch, spec["dtype"])
    model = load_model(ModelConfig(path=spec["model"], device="cpu"), dtype, torch.device("cpu"))
    longest = max(len(p) + max(lengths) for p, lengths in zip(spec["prompts"], spec["lengths"], strict=True))
    engine = TorchEngine(model, eos_ids=(), slots=spec["slots"], max_tokens=longest)
    numbers = itertools.count()

    def decode(lengths: list[list[int]]) -> int:
        left = set()
        for ids, wanted in zip(spec["prompts"], lengths, strict=True):
            prompt = Prompt(
                id="", messages=None, text="", answer=None, source="", token_ids=np.asarray(ids, dtype=np.int32)
            )
            for length, count in Counter(wanted).items():
                params = SamplingParams(temperature=1.0, max_new_tokens=length, n=count, seed=spec["seed"])
                left.add(draw := next(numbers))
                engine.submit(draw, prompt, params)
        tokens = 0
        while left:
            for finished in engine.poll():
                left.discard(finished.draw)
                tokens += sum(response.num_tokens for response in finished.responses)
        return tokens

    def play() -> dict[str, Any]:
        start = time.perf_counter()
        tokens = decode(spec["lengths"])
        seconds = time.perf_counter() - start
        if tokens != sum(map(sum, spec["lengths"])):
            raise RuntimeError(f"{tokens} tokens came back")
        return {"seconds": seconds, "tokens": tokens}

    decode([[min(length, 4) for length in lengths] for lengths in spec["lengths"]])
    serve({"torch": torch.__version__, "threads": torch.get_num_threads()}, play)


if __name__ == "__main__":
    main()
