"""An own rollout engine: plain forward passes without a cache; checked, then trained with.

    python examples/own_engine.py  # 24 s of one core

The seam is `dapo.rollout.base.RolloutEngine`; tests/test_engine_contract.py holds the built-in engines to more.
"""

# %% [markdown]
# # An own engine
# A draw asks for n responses to one prompt. The uniform number behind each token is a function of (seed, draw,
# response, token), so a draw gives the same tokens whatever else is in flight, and after a resume. `dapo.train` calls
# the factory at the end once the model is loaded; it asks our engine and the built-in one for the same draw.

# %%
import copy

import numpy as np
import torch

import dapo
from dapo.engines import max_tokens
from dapo.errors import EngineError
from dapo.rng import Purpose, uniform
from dapo.rollout.sampler import sample
from dapo.rollout.torch_engine import TorchEngine
from dapo.rollout.weights import EngineWeights
from dapo.types import Finish, FinishedDraw, Prompt, Response, SamplingParams


class PlainEngine:
    reproducible = True

    def __init__(self, model, eos_ids):
        self.model, self.eos_ids, self.weights = model, eos_ids, EngineWeights(model)
        self.version, self.waiting = 0, {}

    def submit(self, draw, prompt, params):
        if draw in self.waiting or params.stop:
            raise EngineError(f"draw {draw}: in flight already, or with stop strings, which this engine has not")
        self.waiting[draw] = (prompt, params)

    @torch.no_grad()
    def poll(self):
        if not self.waiting:
            raise EngineError("poll with nothing in flight would wait for ever")
        draw, (prompt, params) = self.waiting.popitem()
        n, start, logprobs = params.n, len(prompt.token_ids), []
        rows = torch.tensor(prompt.token_ids, dtype=torch.long).repeat(n, 1)
        for t in range(params.max_new_tokens):
            logits = self.model(input_ids=rows, use_cache=False).logits[:, -1]
            u = torch.from_numpy(uniform(params.seed, Purpose.TOKEN, draw, np.arange(n), t))
            tokens, chosen = sample(logits, u, torch.full((n,), params.temperature), torch.full((n,), params.top_p))
            rows, logprobs = torch.cat([rows, tokens[:, None]], dim=1), [*logprobs, chosen]
        pairs = zip(rows[:, start:].numpy(), torch.stack(logprobs, dim=1).numpy(), strict=True)
        return [FinishedDraw(draw=draw, responses=tuple(self.response(*pair) for pair in pairs))]

    def response(self, tokens, logprobs):
        ends = np.flatnonzero(np.isin(tokens, self.eos_ids))
        length = int(ends[0]) + 1 if len(ends) else len(tokens)  # what lies behind the end was sampled in vain
        return Response(
            token_ids=tokens[:length].astype(np.int32),
            generated=np.ones(length, dtype=bool),  # False: put in by a tool, see calculator_tool.py
            engine_logprobs=logprobs[:length],
            finish=Finish.STOP if len(ends) else Finish.LENGTH,
            token_versions=((self.version, length),),  # the weights that sampled so many tokens
        )

    def cancel(self, draws):
        self.waiting = {draw: asked for draw, asked in self.waiting.items() if draw not in draws}
        return 0  # tokens sampled in vain: what waits has none

    def load_weights(self, version, tensors, *, recompute=False):
        self.weights.load(tensors)
        self.version = version

    def weight_samples(self):
        return self.weights.samples()

    def close(self):
        self.waiting = {}


# %%
def checked(config, model, policy):
    built_in = TorchEngine(copy.deepcopy(model), eos_ids=policy.eos_ids, slots=24, max_tokens=max_tokens(config))
    ours = PlainEngine(model, policy.eos_ids)
    ids = np.array(policy.tokenizer("gcd 12 18 =")["input_ids"], dtype=np.int32)
    prompt = Prompt(id="one", messages=None, text="gcd 12 18 =", answer=None, source="here", token_ids=ids)
    for engine in (ours, built_in):
        engine.submit(7, prompt, SamplingParams(max_new_tokens=12, n=24, seed=1))
    pairs = list(zip(ours.poll()[0].responses, built_in.poll()[0].responses, strict=True))
    same = sum(a.token_ids.tolist() == b.token_ids.tolist() for a, b in pairs)
    print(f"{len(pairs)} responses, {same} of them token by token those of the built-in engine")
    return ours


run = dapo.train("tiny", {"train.num_steps": 3, "eval.data": []}, engine=checked, quiet=True)
gap = run.metrics[0]["checks/gap_p999_nats"]
print(f"log-probs: 99.9% of tokens within {gap:.1e} nats of the learner's own pass over them")
print(f"findings of the self-checks, step by step: {[int(line['checks/findings']) for line in run.metrics]}")
