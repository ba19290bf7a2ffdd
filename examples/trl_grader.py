"""Our grader and our overlong penalty inside TRL's GRPOTrainer.

    pip install "trl>=1.16" && python examples/trl_grader.py  # 14 s of one core

The model is random and small, and never writes an answer line: its math rewards are all -1. What the example shows
is what each function gives, and that TRL calls and logs just that.
"""

# %% [markdown]
# # The grader in TRL
# `math_reward` is +1 for a right final answer and -1 otherwise, by the data set's column `answer` (or `solution`,
# `ground_truth`, `gold`). `overlong_reward` is Eq. 13 of the DAPO paper.

# %%
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from dapo.model.paths import resolve_model
from dapo.reward import math_reward, overlong_reward

texts = ["So x = 1/2.\nAnswer: 1/2", r"Thus \boxed{0.50}", "Answer: 2", "I don't know."]
for text, reward in zip(texts, math_reward(texts, answer=["0.5"] * len(texts)), strict=True):
    print(f"{reward:+.0f}  {text!r}")

penalty = overlong_reward(max_tokens=12, buffer=8)  # 0 up to 4 tokens, then down to -1 at 12
print([penalty(completions=[""], completion_ids=[[0] * length])[0] for length in (4, 6, 8, 12)])

# %% [markdown]
# ## The trainer
# TRL calls the functions once a step. These two keep what they gave, for the comparison below.

# %%
given: dict[str, list[list[float]]] = {"math_reward": [], "overlong_reward": []}


def watched(function):
    """The function, with what it gave kept under its name."""

    def reward(**arguments):
        given[function.__name__].append(function(**arguments))
        return given[function.__name__][-1]

    reward.__name__ = function.__name__
    return reward


folder = resolve_model("random:tiny")  # 77,000 random weights and a tokenizer of characters, written on first use
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(folder),
    processing_class=AutoTokenizer.from_pretrained(folder),
    reward_funcs=[watched(math_reward), watched(penalty)],
    train_dataset=Dataset.from_list([{"prompt": f"{i} + 1 =", "answer": str(i + 1)} for i in range(16)]),
    args=GRPOConfig(
        output_dir="runs/trl",
        loss_type="dapo",  # what TRL calls its token mean
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,  # no KL
        max_completion_length=12,
        num_generations=8,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        max_steps=2,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
)
trainer.train()

# %%
logs = [log for log in trainer.state.log_history if "reward" in log]
for step, log in enumerate(logs):
    for name, calls in given.items():
        ours = sum(calls[step]) / len(calls[step])
        print(f"step {step + 1}: {name} of {len(calls[step])} completions: ours {ours:.4f}, logged by TRL ", end="")
        print(f"{log[f'rewards/{name}/mean']:.4f}")
