"""The linear layers of a model on as many rows as a decode step has, and nothing else.

    PYTHON contenders/matrix_limit.py SPEC.json

"tokens" are the rows; a round multiplies each layer's input by its weight, for every linear layer in
order, REPEATS times, in the faster of torch's two forms (plain, or oneDNN's blocked one).
"""

from __future__ import annotations

import time
from typing import Any

from serve import claim_stdout, read_spec, serve, use_threads

REPEATS = 20


def main() -> None:
    """Loads, warms up and serves."""
    spec = read_spec()
    use_threads(spec["threads"])
    claim_stdout()
    import torch

    from dapo.config.schema import ModelConfig
    from dapo.model.loading import load_model

    torch.set_num_threads(spec["threads"])
    dtype, rows = getattr(torch, spec["dtype"]), spec["slots"]
    model = load_model(ModelConfig(path=spec["model"], device="cpu"), dtype, torch.device("cpu"))
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    inputs = [torch.randn(rows, weight.shape[1], dtype=dtype) for weight in weights]
    blocked = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]

    def plain() -> None:
        for x, weight in zip(inputs, weights, strict=True):
            torch.nn.functional.linear(x, weight)

    def packed() -> None:
        for x, weight in zip(inputs, blocked, strict=True):
            torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    @torch.inference_mode()
    def best() -> tuple[float, str]:
        times = []
        for form in (plain, packed):
            form()
            start = time.perf_counter()
            for _ in range(REPEATS):
                form()
            times.append(((time.perf_counter() - start) / REPEATS, form.__name__))
        return min(times)

    flops = 2.0 * rows * sum(weight.numel() for weight in weights)

    def play() -> dict[str, Any]:
        seconds, form = best()
        return {"seconds": seconds, "tokens": rows, "form": form, "gflops_per_s": flops / seconds / 1e9}

    serve({"torch": torch.__version__, "threads": torch.get_num_threads()}, play)


if __name__ == "__main__":
    main()
