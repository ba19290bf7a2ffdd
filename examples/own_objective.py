"""An own objective: CISPO in five lines, the same as the built-in one to rounding.

    python examples/own_objective.py  # 18 s of one core

CISPO (MiniMax-M1, arXiv 2506.13585) takes the clipped ratio as a weight without gradient: a clipped token still
moves the policy.
"""

# %% [markdown]
# # An own objective
# An objective takes `ObjectiveInputs` and gives the loss of each token. The mask, the denominator, the KL and the
# micro-batches are not its business: whatever stands outside the mask is never counted.

# %%
import torch

import dapo
from dapo.algorithm import ObjectiveInputs, weighted_loss
from dapo.neighbours import cispo_objective


# %%
def cispo(inputs: ObjectiveInputs) -> torch.Tensor:
    """-sg[clip(r, 0.8, 1.28)] A log pi, [B, T]."""
    ratio = torch.exp(inputs.logprobs_BT.detach() - inputs.old_logprobs_BT)
    return -ratio.clamp(0.8, 1.28) * inputs.advantages_BT * inputs.logprobs_BT


# %% [markdown]
# ## The same as `dapo.neighbours.cispo_objective`
# On random numbers: values on the mask, and the gradient of the whole loss.

# %%
torch.manual_seed(0)
mask = torch.rand(8, 20) < 0.7
old, new = -3 * torch.rand(2, 8, 20)
advantages = torch.randn(8, 1).expand(8, 20)
weights = torch.full((8,), 1 / mask.sum().item())


def value_and_gradient(objective: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-token losses on the mask, and the gradient of their weighted sum over log pi."""
    logprobs = new.clone().requires_grad_()
    inputs = ObjectiveInputs(logprobs_BT=logprobs, old_logprobs_BT=old, advantages_BT=advantages, mask_BT=mask)
    loss = objective(inputs)
    weighted_loss(loss, mask, weights).backward()
    return loss.detach()[mask], logprobs.grad


mine = value_and_gradient(cispo)
theirs = value_and_gradient(lambda inputs: cispo_objective(inputs, clip_low=0.2, clip_high=0.28))
for name, a, b in zip(("loss", "gradient"), mine, theirs, strict=True):
    print(f"largest difference of the {name}: {(a - b).abs().max():.1e}, its largest value {b.abs().max():.2f}")

# %% [markdown]
# ## In training
# Two runs of the recipe `tiny`: one with our function, one with `algorithm.objective = "cispo"`. The clip bounds of the
# recipe are the 0.2 and 0.28 above.

# %%
short = {"train.num_steps": 3, "eval.data": []}
ours = dapo.train("tiny", short, objective=cispo, quiet=True)
built_in = dapo.train("tiny", short, "algorithm.objective=cispo", quiet=True)
for name in ("sampled/accuracy", "loss/policy", "grad/norm", "policy/entropy"):
    pairs = [(a[name], b[name]) for a, b in zip(ours.metrics, built_in.metrics, strict=True)]
    print(f"{name:17}", "  ".join(f"{a:.5f} | {b:.5f}" for a, b in pairs))
    print(f"{'':17} largest difference {max(abs(a - b) for a, b in pairs):.1e}")
