"""Programs graded by running their tests in the sandbox: four gradings, then one training step.

    python examples/code_with_tests.py  # 18 s of one core

No small random model writes programs, so this one chooses: each of its tokens is a whole program in its fence. The
grading and the training step are those of a real model.
"""

# %% [markdown]
# # Code with tests
# `python-tests` runs the last fenced program of a response in a process of its own, with limits of time and memory;
# where the kernel grants it, without the network, other processes and your files. Expected outputs never enter it.

# %%
import collections

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import dapo
from dapo.reward.python_tests import verify
from dapo.reward.sandbox import Limits, run_program

PROGRAMS = {
    "double": "print(int(input()) * 2)",
    "square": "print(int(input()) ** 2)",
    "endless": "while True: pass",
    "malicious": """import os, socket
def attempt(name, act):
    try: print(name, act(), flush=True)
    except OSError as error: print(name, type(error).__name__, flush=True)
attempt("variables:", lambda: sorted(os.environ))
attempt("processes:", lambda: [name for name in os.listdir("/proc") if name.isdigit()])
attempt("other people's files:", lambda: os.listdir("/home"))
attempt("network:", lambda: socket.create_connection(("127.0.0.1", 9), 1))
os._exit(0)""",
}
tests = {"inputs": ["3", "5"], "outputs": ["6", "10"]}  # or assert lines: ["assert f(3) == 6"]
for name, program in PROGRAMS.items():
    score = verify(f"It is\n```python\n{program}\n```", tests, Limits(cpu_s=1))
    print(f"{name:10} {score.verdict.value:8} reward {score.reward:+.0f}  {score.stage}")
outcome = run_program(PROGRAMS["malicious"])
print(f"isolated here: {', '.join(outcome.isolated) or 'nothing'}. What the malicious one found:\n{outcome.stdout}")

# %% [markdown]
# ## A model that chooses a program
# Two words to ask with, one token for each program, and an end.

# %%
words = ["<end>", "<unk>", "double", "square"] + [f"```python\n{program}\n```" for program in PROGRAMS.values()]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
folder = "runs/chooser"
torch.manual_seed(0)
wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>", pad_token="<end>")
wrapped.save_pretrained(folder)
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
LlamaForCausalLM(LlamaConfig(vocab_size=len(words), eos_token_id=0, pad_token_id=0, **shape)).save_pretrained(folder)

# %%
run = dapo.train(
    "tiny",
    {
        "model.path": folder,
        "data": {"template": "raw", "holdout": 0},
        "eval.data": [],
        "reward": {"functions": ["python-tests"], "overlong": "none", "tests_limit_s": 1.0},
        "sampling": {"max_response_tokens": 1, "prompts_per_step": 2, "gen_prompts": 2, "responses_per_prompt": 16},
        "train.num_steps": 1,
    },
    prompts=[
        {"problem": "double", "answer": "", "tests": tests},
        {"problem": "square", "answer": "", "tests": {"inputs": ["3", "5"], "outputs": ["9", "25"]}},
    ],
    quiet=True,
)
verdicts = collections.Counter((row["prompt"], row["verdict"]) for row in run.rollouts(1))
for (asked, verdict), count in sorted(verdicts.items()):
    print(f"{asked}: {count:2} of 16 {verdict}")
(line,) = run.metrics
print(
    f"{line['sampled/accuracy']:.0%} right, {line['sampling/kept']:.0f} groups kept, |gradient| {line['grad/norm']:.2f}"
)
