"""Several turns with a calculator: what the tool says is part of the response, and not of the loss.

    python examples/calculator_tool.py  # 30 s of one core

A real model writes a call such as <calc>2+3</calc>. The random model of `tiny` has 53 characters and no such words,
so here "=" is the call: it asks for the value of the sum before it, which stands in the problem. One token in fifty
is a call by chance, and training finds out that it pays.
"""

# %% [markdown]
# # A tool inside a response
# The engine wraps another one. A turn ends at a call; the value goes into the row with `generated` = False and log-prob
# 0, and the next turn goes on behind it. A poll takes one draw to its end, all of its responses side by side.

# %%
import re
from dataclasses import replace
from math import prod

import numpy as np

import dapo
from dapo.engines import make_engine
from dapo.errors import EngineError
from dapo.types import Finish, FinishedDraw, Response

MOST = 64  # responses of a draw, turns of a response


def calculate(text):
    """The value of the sum of products that the text ends with, such as 2*3+4-1; "?" without one. Nothing is run."""
    found = re.search(r"(?<![-+*\d])\d{1,4}([-+*]\d{1,4}){0,4}$", text)
    terms = re.findall(r"([-+]?)([\d*]+)", found[0]) if found else []
    total = sum((-1 if sign == "-" else 1) * prod(map(int, term.split("*"))) for sign, term in terms)
    return str(total) if found else "?"


class WithCalculator:
    def __init__(self, inner, policy):
        self.inner, self.policy, self.waiting = inner, policy, {}

    def __getattr__(self, name):  # load_weights, weight_samples, version, reproducible
        return getattr(self.inner, name)

    def submit(self, draw, prompt, params):
        if draw in self.waiting:
            raise EngineError(f"draw {draw} is in flight already")
        self.waiting[draw] = (prompt, params)

    def cancel(self, draws):
        self.waiting = {draw: asked for draw, asked in self.waiting.items() if draw not in draws}
        return 0  # tokens sampled in vain: what waits has none

    def close(self):
        self.waiting = {}
        self.inner.close()

    def poll(self):
        if not self.waiting:
            raise EngineError("poll with nothing in flight would wait for ever")
        draw, (prompt, params) = self.waiting.popitem()
        rows, going, turn = [[] for _ in range(params.n)], range(params.n), 0
        while going:
            for g in going:  # each turn is a draw of the inner engine, under a number of its own
                before = np.array([*prompt.token_ids, *(token for token, *_ in rows[g])], dtype=np.int32)
                asked = replace(params, n=1, max_new_tokens=params.max_new_tokens - len(rows[g]), stop=("=",))
                self.inner.submit((draw * MOST + g) * MOST + turn, replace(prompt, token_ids=before), asked)
            said = {}
            while len(said) < len(going):
                said |= {done.draw // MOST % MOST: done.responses[0] for done in self.inner.poll()}
            going = [g for g in going if self.called(said[g], rows[g], prompt, params)]
            turn += 1
        return [FinishedDraw(draw=draw, responses=tuple(map(self.response, rows)))]

    def called(self, said, row, prompt, params):
        """Adds a turn to its row, and the value behind a call; whether there is another turn."""
        row += zip(said.token_ids.tolist(), said.generated.tolist(), said.engine_logprobs.tolist(), strict=True)
        text = self.policy.decode([*prompt.token_ids, *(token for token, *_ in row)])
        if row[-1][0] in self.policy.eos_ids or not text.endswith("="):
            return False
        value = self.policy.tokenizer(calculate(text[:-1]))["input_ids"]
        row += [(token, False, 0.0) for token in value][: params.max_new_tokens - len(row)]
        return len(row) < params.max_new_tokens

    def response(self, row):
        tokens, generated, logprobs = zip(*row, strict=True)
        return Response(
            token_ids=np.array(tokens, dtype=np.int32),
            generated=np.array(generated),
            engine_logprobs=np.array(logprobs, dtype=np.float32),
            finish=Finish.STOP if tokens[-1] in self.policy.eos_ids else Finish.LENGTH,
            token_versions=((self.version, len(row)),),
        )


# %%
def with_calculator(config, model, policy):
    """What dapo calls once the model is loaded."""
    return WithCalculator(make_engine(config, model, policy), policy)


run = dapo.train(
    "tiny",
    {"data": {"template": "raw", "holdout": 0}, "eval.data": []},
    {"sampling.max_response_tokens": 5, "train.num_steps": 6, "log.token_rows": 64},
    prompts=[{"problem": f"{a}+{b}", "answer": str(a + b)} for a in range(1, 10) for b in range(1, 10)],
    engine=with_calculator,
    quiet=True,
)
for line in run.metrics:
    calls = np.mean(["=" in row["text"] for row in run.rollouts(line["step"])])
    print(f"step {line['step']}: {calls:.0%} of the responses call, {line['sampled/accuracy']:.0%} are right")

# %% [markdown]
# ## The loss mask
# A run keeps some responses of its updates token by token. A token outside the loss has no ratio.

# %%
row = next(row for row in run.tokens(6) if "=" in row["tokens"][:-2])
for token, logprob, ratio in zip(row["tokens"], row["logprobs"], row["ratios"], strict=True):
    print(f"{token!r:5} log-prob {logprob:7.4f}  {'not in the loss' if ratio is None else f'ratio {ratio:.4f}'}")
