"""Checks that involve several fields. Each message names the fields and the mend."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dapo.config.check_scale import scale_problems
from dapo.config.reward import JUDGES, function_names, has_judge
from dapo.config.schema import TRACKERS, AlgorithmConfig, Config, LearnerConfig, RewardConfig, SourceConfig
from dapo.config.sets import HOLDOUT, evaluation_sources, source_tables
from dapo.errors import ConfigError


def check(config: Config) -> None:
    """Raises ConfigError with the first combination of values that can't be used."""
    for problem in problems(config):
        raise ConfigError(problem)


def problems(config: Config) -> Iterator[str]:
    """Every combination of values that can't be used, one line each."""
    yield from _sets(config)
    yield from _sampling(config)
    yield from _surplus(config)
    yield from _curriculum(config)
    yield from _checkpoint(config)
    yield from _overlong(config)
    yield from _reward("reward", config.reward, config.reward.compat)
    yield from _correctness(config)
    yield from _source_rewards(config)
    yield from _algorithm(config)
    yield from _adapters(config)
    yield from _data(config)
    yield from _ratings(config)
    yield from _trackers(config)
    yield from scale_problems(config)


def _sets(config: Config) -> Iterator[str]:
    try:
        evaluation_sources(config)
    except ConfigError as error:
        yield error.message


def _sources(config: Config) -> dict[str, SourceConfig]:
    """The evaluation sets; none where `_sets` has told why."""
    try:
        return evaluation_sources(config)
    except ConfigError:
        return {}


def _sampling(config: Config) -> Iterator[str]:
    sampling, train = config.sampling, config.train
    if sampling.responses_per_prompt < 2:
        yield ("sampling.responses_per_prompt = 1: a group of one has no relative advantage; use 2 or more")
    least, most = sampling.min_responses_per_prompt, sampling.responses_per_prompt
    if least is not None and not 2 <= least <= most:
        yield (
            f"sampling.min_responses_per_prompt = {least}: use 2 to responses_per_prompt = {most}, "
            'or "off" for groups of one size'
        )
    if sampling.prompts_per_step % train.updates_per_step:
        yield (
            f"train.updates_per_step = {train.updates_per_step} does not divide "
            f"sampling.prompts_per_step = {sampling.prompts_per_step}; choose a divisor"
        )
    if (
        sampling.filter == "off"
        and sampling.schedule == "rounds"
        and (sampling.gen_prompts or 0) > sampling.prompts_per_step
    ):
        yield (
            'sampling.filter = "off" keeps every group, so gen_prompts over prompts_per_step would '
            'only be thrown away; set sampling.gen_prompts = "off"'
        )


def _surplus(config: Config) -> Iterator[str]:
    sampling, algorithm = config.sampling, config.algorithm
    most = (sampling.gen_prompts or sampling.prompts_per_step) * sampling.max_rounds
    if most < sampling.prompts_per_step:
        yield (
            f"sampling.gen_prompts * max_rounds = {most} draws can never fill "
            f"prompts_per_step = {sampling.prompts_per_step}; raise one of them"
        )
    if sampling.surplus == "discard" and sampling.max_staleness:
        yield (
            f'sampling.max_staleness = {sampling.max_staleness}, but sampling.surplus = "discard" leaves nothing '
            'to be stale; set surplus = "carry" or max_staleness = 0'
        )
    if sampling.surplus == "discard":
        return
    if sampling.filter == "off" and sampling.schedule == "streaming":
        yield (
            'sampling.surplus = "carry" has nothing to carry: with sampling.filter = "off" streaming draws just '
            'what it keeps; set surplus = "discard" and max_staleness = 0'
        )
    if not sampling.max_staleness:
        yield 'sampling.surplus = "carry" needs sampling.max_staleness of 1 or more: so many steps a group may wait'
    if algorithm.old_logprobs != "learner":
        yield (
            'sampling.surplus = "carry" trains on tokens of older policies and needs '
            'algorithm.old_logprobs = "learner" beside the engine\'s'
        )
    if algorithm.importance_cap is None:
        yield (
            'sampling.surplus = "carry" trains on tokens of older policies; set algorithm.importance_cap '
            "(e.g. 2), the bound C of the weight min(exp(old - engine), C)"
        )


def _curriculum(config: Config) -> Iterator[str]:
    sampling = config.sampling
    if sampling.skip_solved_after and not has_judge(config.reward):
        yield (
            "sampling.skip_solved_after needs rewards that say what is right; "
            f'reward.functions = {function_names(config.reward)} do not (add "grader", or set it "off")'
        )
    if config.reward.placebo and sampling.schedule == "streaming":
        yield 'reward.placebo deals the scores of a whole round again; set sampling.schedule = "rounds"'


def _checkpoint(config: Config) -> Iterator[str]:
    every, keep_every = config.checkpoint.every, config.checkpoint.keep_every
    if keep_every is not None and (every is None or keep_every % every):
        yield (
            f"checkpoint.keep_every = {keep_every} keeps nothing: no checkpoint is written at those steps; "
            "make it a multiple of checkpoint.every"
        )
    if config.checkpoint.keep_best:
        yield from _keep_best(config)


def _keep_best(config: Config) -> Iterator[str]:
    kept, on, metric = config.checkpoint.keep_best, config.checkpoint.best_on, config.checkpoint.best_metric
    every, evaluated = config.checkpoint.every, config.eval.every
    names = list(_sources(config))
    if not names:
        yield f"checkpoint.keep_best = {kept} needs evaluations; set eval.data, or keep_best = 0"
        return
    if every is None or evaluated is None or math.lcm(every, evaluated) >= config.train.num_steps:
        yield (
            f"checkpoint.keep_best = {kept} keeps nothing: no step before the last is both "
            "saved and evaluated; set checkpoint.every and eval.every so that they meet"
        )
    if on is None and len(names) > 1:
        yield (
            f"checkpoint.keep_best = {kept} needs one set to pick by, and eval.data has {', '.join(names)}; name the "
            f'validation set: checkpoint.best_on = "{names[0]}" (the others stay tests)'
        )
    if on is not None and on not in names:
        yield f'checkpoint.best_on = "{on}" is no set of eval.data, which has {", ".join(names)}'
    if metric in ("pass", "maj") and not has_judge(config.reward):
        yield f'checkpoint.best_metric = "{metric}" needs rewards that say what is right; use "reward"'
    picking = [source for name, source in _sources(config).items() if on in (name, None)]
    if metric == "maj" and any("python-tests" in function_names(s.reward.over(config.reward)) for s in picking):
        yield 'checkpoint.best_metric = "maj" needs answers that can be compared; programs can\'t, use "pass"'


def _overlong(config: Config) -> Iterator[str]:
    reward, limit = config.reward, config.sampling.max_response_tokens
    if "soft" in reward.overlong and reward.overlong_buffer_tokens > limit:
        yield (
            f"reward.overlong_buffer_tokens = {reward.overlong_buffer_tokens} is over "
            f"sampling.max_response_tokens = {limit}: every response would be penalised; lower it"
        )
    if reward.overlong_factor >= 2 and reward.overlong in ("hard", "soft", "soft+filter"):
        yield (
            f"reward.overlong_factor = {reward.overlong_factor:g}: from 2 on a wrong answer can "
            "outrank a right one; use less than 2"
        )


def _reward(place: str, reward: RewardConfig, compat: str | None) -> Iterator[str]:
    """Of [reward], or of what a source makes of it. place: what messages call it. compat: as it stands there."""
    functions = [f if isinstance(f, str) else f.function for f in reward.functions]
    judges = [name for name in functions if name in JUDGES]
    if not reward.extract and (not functions or "grader" in functions):
        yield f"{place}.extract is empty; name at least one of answer_line, boxed, tag"
    if len(judges) > 1:
        yield f"{place}.functions names {' and '.join(judges)}; only one of them can say what is right"
    if compat not in (None, "off") and functions and "grader" not in functions:
        yield f'{place}.compat = "{compat}" needs "grader" in {place}.functions'


def _correctness(config: Config) -> Iterator[str]:
    if not has_judge(config.reward) and config.sampling.filter == "correctness":
        yield (
            f'sampling.filter = "correctness", but reward.functions = {function_names(config.reward)} give no '
            'correctness; add "grader" to them, or choose sampling.filter = "nonzero_std" by name'
        )


def _source_rewards(config: Config) -> Iterator[str]:
    """What single sources say of their rewards, on top of [reward]."""
    for place, source in source_tables(config):
        if not source.reward.key:
            continue
        if source.source == HOLDOUT:
            yield f'{place}.reward: "holdout" is judged as the sources are that its problems come from; remove it'
        reward = source.reward.over(config.reward)
        yield from _reward(f"{place}.reward", reward, source.reward.compat)
        if has_judge(reward) != has_judge(config.reward):
            words = ("say what is right", "do not")
            yield (
                f"{place}.reward.functions = {function_names(reward)} {words[not has_judge(reward)]}, and "
                f"reward.functions = {function_names(config.reward)} {words[has_judge(reward)]}; let all say what is "
                "right, or none"
            )


def _algorithm(config: Config) -> Iterator[str]:
    algorithm = config.algorithm
    if algorithm.clip_dual is not None and algorithm.clip_dual <= 1:
        yield f'algorithm.clip_dual = {algorithm.clip_dual:g}: use a number over 1, or "off"'
    if algorithm.reduction == "constant" and not algorithm.constant_tokens:
        yield 'algorithm.reduction = "constant" needs algorithm.constant_tokens (its L)'
    if algorithm.reduction != "constant" and algorithm.constant_tokens is not None:
        yield (
            'algorithm.constant_tokens is used by reduction = "constant" alone; '
            f'remove it or change reduction = "{algorithm.reduction}"'
        )
    if algorithm.old_logprobs == "engine" and algorithm.importance_cap is not None:
        yield (
            'algorithm.importance_cap weighs old against engine, and algorithm.old_logprobs = "engine" makes them '
            'one; set importance_cap = "off" or old_logprobs = "learner"'
        )
    yield from _objective(config)
    if algorithm.kl.place == "off" and algorithm.kl.coef > 0:
        yield 'algorithm.kl.coef is set but algorithm.kl.place = "off"; set place to "loss" or "reward"'
    if algorithm.kl.place != "off" and algorithm.kl.coef == 0:
        yield f'algorithm.kl.place = "{algorithm.kl.place}" needs algorithm.kl.coef over 0'


def _objective(config: Config) -> Iterator[str]:
    """What single objectives and estimators can't be combined with."""
    algorithm = config.algorithm
    covariance = algorithm.covariance
    if covariance.low >= covariance.high:
        yield (
            f"algorithm.covariance.low = {covariance.low:g} is not under high = {covariance.high:g}, "
            "which leaves no token to pick; swap them"
        )
    if algorithm.clip_dual is not None and algorithm.objective not in ("dapo", "clip_cov") and _built_in(algorithm):
        yield (
            f'algorithm.clip_dual bounds the loss of objective = "dapo" and "clip_cov"; with "{algorithm.objective}" '
            'it would do nothing: set it "off"'
        )
    if algorithm.importance_level != "token" and algorithm.importance_cap is None:
        yield (
            f'algorithm.importance_level = "{algorithm.importance_level}" needs algorithm.importance_cap, the bound C '
            "of the weight"
        )
    if algorithm.kl.place == "loss" and algorithm.kl.estimator == "k1":
        yield (
            'algorithm.kl.estimator = "k1" in the loss has a gradient of zero in the mean; use "k2" or "k3", or '
            'kl.place = "reward"'
        )
    if algorithm.kl.place == "off" and algorithm.kl.reset_every is not None:
        yield 'algorithm.kl.reset_every has no reference to reset; set algorithm.kl.place to "loss" or "reward"'


def _adapters(config: Config) -> Iterator[str]:
    learner, default = config.learner, LearnerConfig()
    if learner.lora_rank is None:
        for name in ("lora_alpha", "lora_targets"):
            if getattr(learner, name) != getattr(default, name):
                yield f"learner.{name} does nothing without adapters; set learner.lora_rank, or remove it"
    elif learner.kind not in ("torch", "fsdp"):
        yield f'learner.lora_rank is of learner.kind = "torch" or "fsdp", not "{learner.kind}"; set it "off"'


def _built_in(algorithm: AlgorithmConfig) -> bool:
    return algorithm.objective in ("dapo", "gspo", "cispo", "clip_cov", "kl_cov")


def _data(config: Config) -> Iterator[str]:
    data = config.data
    if data.source == "holdout":
        yield 'data.source: "holdout" is for eval.data; name a file or reasoning-gym:TASK'
    if isinstance(data.source, tuple):
        if not data.source:
            yield "data.source is empty; name at least one source"
        weighted = [source.weight is not None for source in data.source]
        if any(weighted) and not all(weighted):
            yield "data.source: give every source a weight, or none"
        if any(source.source == "holdout" for source in data.source):
            yield 'data.source: "holdout" is for eval.data; name a file or reasoning-gym:TASK'
    wanted = [source.source for source in _sources(config).values()]
    if HOLDOUT in wanted and not data.holdout:
        yield 'eval.data = "holdout" needs data.holdout over 0'


def _ratings(config: Config) -> Iterator[str]:
    data = config.data
    low, high = data.min_pass_rate, data.max_pass_rate
    for name, bound in (("min_pass_rate", low), ("max_pass_rate", high)):
        if bound is not None and data.rating_column is None:
            yield f"data.{name} = {bound:g} needs data.rating_column, the column that holds the pass rates"
    if low is not None and high is not None and low > high:
        yield f"data.min_pass_rate = {low:g} is over data.max_pass_rate = {high:g}, which leaves nothing; swap them"


def _trackers(config: Config) -> Iterator[str]:
    for name in config.trackers:
        if ":" not in name and name not in TRACKERS:
            yield f'trackers = ["{name}"]: not known; write {", ".join(TRACKERS)}, or FILE.py:NAME of a function'
    for name in sorted({name for name in config.trackers if config.trackers.count(name) > 1}):
        yield f'trackers names "{name}" twice; name it once'
