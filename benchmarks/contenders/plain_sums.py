"""The shortest loop that trains on one-digit sums by DAPO, with transformers and nothing else.

    PYTHON contenders/plain_sums.py SPEC.json

Rounds of 8 prompts x 8 responses from `generate`, groups with both right and wrong answers kept until
there are 16 (at most 12 rounds), two updates of 8 groups each: all rows padded to one length, full
logits, clip 0.2 and 0.28, token mean, AdamW, gradients clipped to norm 1. Nothing is shared or packed.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from typing import Any

from serve import claim_stdout, read_spec, serve, use_threads

GROUPS, RESPONSES, DRAWN, ROUNDS, LONGEST = 16, 8, 8, 12, 12


def sample(model: Any, tokenizer: Any, pairs: list[tuple[int, int]]) -> list[tuple[Any, Any, Any, list[bool]]]:
    """(tokens, prompt mask, response mask, right) of each pair's responses."""
    import torch

    turns = [
        [
            {"role": "system", "content": "Answer with a number."},
            {"role": "user", "content": f"What is {a} + {b}?"},
        ]
        for a, b in pairs
    ]
    texts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    given = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        tokens = model.generate(
            **given,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=LONGEST,
            num_return_sequences=RESPONSES,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    width = given["input_ids"].shape[1]
    mask = given["attention_mask"].repeat_interleave(RESPONSES, dim=0)
    response = tokens[:, width:]
    ended = (response == tokenizer.eos_token_id).long().cumsum(1)
    inside = (ended == 0) | ((ended == 1) & (response == tokenizer.eos_token_id))
    result = []
    for index, (a, b) in enumerate(pairs):
        rows = slice(index * RESPONSES, (index + 1) * RESPONSES)
        answers = [
            re.findall(r"-?\d+", text) for text in tokenizer.batch_decode(response[rows], skip_special_tokens=True)
        ]
        right = [bool(found) and int(found[-1]) == a + b for found in answers]
        result.append((tokens[rows], mask[rows], inside[rows], right))
    return result


def logprobs(model: Any, tokens: Any, mask: Any, inside: Any) -> Any:
    """Of the response tokens, from full logits over padded rows."""
    import torch

    attention = torch.cat([mask, inside.long()], dim=1)
    positions = (attention.cumsum(1) - 1).clamp_min(0)
    logits = model(input_ids=tokens, attention_mask=attention, position_ids=positions, use_cache=False).logits
    start = mask.shape[1]
    return torch.log_softmax(logits[:, start - 1 : -1], -1).gather(-1, tokens[:, start:, None]).squeeze(-1)


def update(model: Any, optimizer: Any, groups: list[tuple[Any, Any, Any, list[bool]]], old: list[Any]) -> None:
    """One optimiser step on the token mean over these groups."""
    import torch

    total = sum(int(inside.sum()) for _, _, inside, _ in groups)
    optimizer.zero_grad()
    for (tokens, mask, inside, right), before in zip(groups, old, strict=True):
        reward = torch.tensor([1.0 if r else -1.0 for r in right])
        advantage = ((reward - reward.mean()) / (reward.std() + 1e-6))[:, None]
        ratio = torch.exp(logprobs(model, tokens, mask, inside) - before)
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        ((loss * inside).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def train(spec: dict[str, Any], seed: int) -> dict[str, Any]:
    """Until the target, or the most steps."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    generator = random.Random(seed)
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(spec["model"], padding_side="left")
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec["learning_rate"], weight_decay=0.0)
    accuracy: list[float] = []
    compute = torch.autocast("cpu", torch.bfloat16, enabled=spec["dtype"] == "bfloat16")
    start = time.perf_counter()
    while len(accuracy) < spec["most_steps"] and (not accuracy or accuracy[-1] < spec["target"]):
        kept, right = [], []
        for _ in range(ROUNDS):
            pairs = [(generator.randrange(10), generator.randrange(10)) for _ in range(DRAWN)]
            with compute:
                groups = sample(model, tokenizer, pairs)
            right += [r for group in groups for r in group[3]]
            kept += [group for group in groups if 0 < sum(group[3]) < RESPONSES]
            if len(kept) >= GROUPS:
                break
        kept = kept[:GROUPS]
        with compute, torch.no_grad():
            old = [logprobs(model, tokens, mask, inside) for tokens, mask, inside, _ in kept]
        half = -(-len(kept) // 2)
        for part in (slice(0, half), slice(half, None)):
            if kept[part]:
                with compute:
                    update(model, optimizer, kept[part], old[part])
        accuracy.append(sum(right) / len(right))
    return {"seconds": time.perf_counter() - start, "accuracy": accuracy}


def main() -> None:
    """Serves; every round has the next seed."""
    spec = read_spec()
    use_threads(spec["threads"])
    claim_stdout()
    import torch

    torch.set_num_threads(spec["threads"])
    seeds = itertools.count()
    serve({"torch": torch.__version__, "threads": torch.get_num_threads()}, lambda: train(spec, next(seeds)))


if __name__ == "__main__":
    main()
