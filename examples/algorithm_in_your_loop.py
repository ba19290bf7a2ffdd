"""Only `dapo.algorithm`, in a training loop of your own: the cut into micro-batches does not change the gradient.

    python examples/algorithm_in_your_loop.py  # 7 s of one core

The policy is a table of logits: for each of eight prompts and each previous token, which token comes next. A
response is right when its first token is the prompt's number; it has to learn to stop as well.
"""

# %% [markdown]
# # The algorithm in your own loop
# `dapo.algorithm` is arithmetic on tensors: no files, no configuration, no engine. The letters after a name are its
# shape: P prompts, G responses of each, B rows, T tokens.

# %%
import torch

from dapo import algorithm

P, G, T, END = 8, 8, 6, 8  # tokens 0 to 7, and the one that ends a response
torch.manual_seed(0)
policy = torch.nn.Embedding(P * (END + 1), END + 1)
optimiser = torch.optim.AdamW(policy.parameters(), lr=0.2, weight_decay=0.0)


def logprobs_of(prompt_B, tokens_BT):
    """[B, T]: log pi of each token given the prompt and the token before it."""
    before_BT = torch.cat([torch.full_like(tokens_BT[:, :1], END), tokens_BT[:, :-1]], dim=1)
    return algorithm.token_logprobs(policy(prompt_B.unsqueeze(1) * (END + 1) + before_BT), tokens_BT)[0]


@torch.no_grad()
def sample(prompt_B):
    """(tokens [B, T], mask [B, T]): responses, and which of their tokens count: the end among them, none after it."""
    tokens_BT = torch.full((len(prompt_B), T), END)
    for t in range(T):
        before_B = tokens_BT[:, t - 1] if t else torch.full_like(prompt_B, END)
        probs_BV = policy(prompt_B * (END + 1) + before_B).softmax(-1)
        tokens_BT[:, t] = torch.multinomial(probs_BV, 1).squeeze(1)
    ended_BT = (tokens_BT == END).cumsum(1) - (tokens_BT == END).long()
    return tokens_BT, ended_BT == 0


def gradient(batch, rows_of_each_part):
    """The gradient of a whole mini-batch, cut into parts of so many rows."""
    policy.zero_grad()
    for prompt_B, tokens_BT, mask_BT, old_BT, advantage_B, weight_B in zip(
        *(tensor.split(rows_of_each_part) for tensor in batch), strict=True
    ):
        inputs = algorithm.ObjectiveInputs(
            logprobs_BT=logprobs_of(prompt_B, tokens_BT),
            old_logprobs_BT=old_BT,
            advantages_BT=advantage_B.unsqueeze(1).expand(mask_BT.shape),
            mask_BT=mask_BT,
        )
        loss_BT = algorithm.dapo_objective(inputs, clip_low=0.2, clip_high=0.28)
        algorithm.weighted_loss(loss_BT, mask_BT, weight_B).backward()
    return policy.weight.grad.clone()


# %% [markdown]
# ## Twenty steps, two updates each
# A row's weight, one over all tokens of the mini-batch, is made before the cut. A mean in each part, then over parts,
# is another gradient: the last figure says how far off.

# %%
for step in range(1, 21):
    prompt_B = torch.arange(P).repeat_interleave(G)
    tokens_BT, mask_BT = sample(prompt_B)
    correct_PG = (tokens_BT[:, 0] == prompt_B).view(P, G)
    penalty_B = algorithm.overlong_penalty(mask_BT.sum(1), max_tokens=T, buffer_tokens=4)
    kept_P = algorithm.informative(correct_PG)  # neither all right nor all wrong
    if not kept_P.any():
        continue
    reward_PG = 2.0 * correct_PG - 1.0 + penalty_B.view(P, G)
    advantage_PG = algorithm.group_advantages(reward_PG[kept_P], std_correction=1, eps=1e-6)
    prompt, tokens, mask = (tensor[kept_P.repeat_interleave(G)] for tensor in (prompt_B, tokens_BT, mask_BT))
    batch = [prompt, tokens, mask, logprobs_of(prompt, tokens).detach(), advantage_PG.flatten()]
    weights = algorithm.row_weights(mask.sum(1), prompt, "minibatch")
    parts = mask.split(5)
    of_parts = torch.cat([torch.full((len(part),), 1 / len(parts) / part.sum().item()) for part in parts])
    whole = gradient([*batch, weights], len(prompt))
    cut, of_means = (gradient([*batch, each], 5) for each in (weights, of_parts))
    if step in (1, 5, 10, 15, 20):
        off, off_means = ((other - whole).norm() / whole.norm() for other in (cut, of_means))
        print(
            f"step {step:2}: {correct_PG.float().mean():4.0%} right, kept {kept_P.sum()} of {P} groups; gradient in ",
            end="",
        )
        print(f"parts of 5 rows off by {off:.0e}, as a mean of means by {off_means:.0%}")
    for _ in range(2):
        policy.weight.grad = gradient([*batch, weights], 5)
        optimiser.step()
