"""Own problems and an own reward: rows in a list, a function in this file, one call.

    python examples/own_data_and_reward.py  # 15 s of one core

The model has 77,000 random weights, so what it can learn in six steps is to say a number, and which numbers
are often near the answer; not to subtract.
"""

# %% [markdown]
# # Own data and reward
# A row is a mapping with `problem` and `answer`; other columns are kept, and the reward function gets them too.

# %%
import re

import dapo

rows = [{"problem": f"{a} - {b} =", "answer": str(a - b), "level": a} for a in range(10) for b in range(a + 1)]
print(f"{len(rows)} rows, the first of them: {rows[0]}")

# %% [markdown]
# The reward has the signature that TRL's trainers call: the responses to one prompt, and each column of its row as a
# list of the same length. It returns one number for each response. verl's `compute_score(data_source, solution_str,
# ground_truth, extra_info)` is taken as well.


# %%
def closeness(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """1 for the right number, a tenth less for each unit that it is off, and -1 without a number."""
    rewards = []
    for text, right in zip(completions, answer, strict=True):
        number = re.search(r"-?\d{1,3}", text)
        rewards.append(-1.0 if number is None else max(-1.0, 1 - abs(int(number[0]) - int(right)) / 10))
    return rewards


print(closeness(["3", "about 5", "no idea"], answer=["3", "3", "3"]))

# %% [markdown]
# `tiny` is a recipe; the mapping lies on top of it. A reward that says how good and not whether right has no groups
# that are all right or all wrong: `nonzero_std` keeps the groups whose rewards differ.

# %%
run = dapo.train(
    "tiny",
    {
        "data.template": "raw",  # the problem's text as it is; a chat model wants "chat"
        "data.holdout": 15,  # rows that are not trained on: the recipe evaluates on them before and after
        "sampling.filter": "nonzero_std",
        "sampling.gen_prompts": 16,
        "train.num_steps": 6,
    },
    prompts=rows,
    reward=closeness,
)

# %%
for line in run.metrics:
    if "sampled/reward_mean" in line:
        print(f"step {line['step']}: mean reward {line['sampled/reward_mean']:.3f}")
before, after = (line["eval/reward_mean"] for line in run.metrics if "eval/reward_mean" in line)
print(f"15 rows that were held out: mean reward {before:.3f} before, {after:.3f} after")
print(f"everything else is in {run.path}: dapo report {run.path}")
