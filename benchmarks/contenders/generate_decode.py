"""Decoding with `generate` of transformers.

    PYTHON contenders/generate_decode.py SPEC.json

The spec is vllm_decode's; the lengths must all be the same, for `generate` goes on until the last row ends.
"slots", "compiled" and "seeded" mean nothing here: all rows are decoded at once, which is fastest.

In the measured time: padding the prompts, prefill, decoding to the last token. End tokens do not end a row.
`generate` gives no log-probability of the sampled tokens without keeping all logits, so none is asked for: a
trainer would need another forward pass for it. Out of the measured time: loading and one small warm-up.
"""

from __future__ import annotations

import time
from typing import Any

from serve import claim_stdout, read_spec, serve, use_threads


def padded(spec: dict[str, Any], pad: int) -> tuple[Any, Any]:
    """Token ids and attention mask: each prompt as often as it has responses, padded on the left."""
    import torch

    rows = [prompt for prompt, wanted in zip(spec["prompts"], spec["lengths"], strict=True) for _ in wanted]
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def decode(model: Any, spec: dict[str, Any], length: int) -> int:
    """Decodes every row to this length, and returns how many tokens that makes."""
    from transformers import GenerationConfig

    pad = model.config.pad_token_id or 0
    ids, mask = padded(spec, pad)
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=length,
        eos_token_id=None,
        pad_token_id=pad,
    )
    output = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    rows, width = output.shape
    return int(rows * (width - ids.shape[1]))


def main() -> None:
    """Loads, warms up and serves."""
    spec = read_spec()
    lengths = {length for wanted in spec["lengths"] for length in wanted}
    if len(lengths) != 1:
        raise SystemExit("generate_decode: all lengths must be the same")
    length = lengths.pop()
    use_threads(spec["threads"])
    claim_stdout()
    import torch
    import transformers

    torch.set_num_threads(spec["threads"])
    dtype = getattr(torch, spec["dtype"])
    model = transformers.AutoModelForCausalLM.from_pretrained(spec["model"], dtype=dtype, attn_implementation="sdpa")
    model.eval()
    model.generation_config.eos_token_id = None  # otherwise `generate` takes the model's own for one left None

    def play() -> dict[str, Any]:
        torch.manual_seed(spec["seed"])
        start = time.perf_counter()
        tokens = decode(model, spec, length)
        seconds = time.perf_counter() - start
        expected = length * sum(map(len, spec["lengths"]))
        if tokens != expected:
            raise RuntimeError(f"{tokens} tokens came back, not {expected}")
        return {"seconds": seconds, "tokens": tokens}

    decode(model, spec, min(length, 4))
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    serve({**versions, "threads": torch.get_num_threads()}, play)


if __name__ == "__main__":
    main()
