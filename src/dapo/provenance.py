"""What a run was made of, written down when it starts and held against when it goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import dapo.reward
from dapo.config.load import resolve
from dapo.config.release import recipe_digest
from dapo.config.reward import function_names
from dapo.config.schema import Config, RewardConfig
from dapo.config.sets import all_rewards
from dapo.data import CheckedData, LoadedData
from dapo.data.prompts import Problem
from dapo.errors import ResumeRefused
from dapo.evals.run import Sets, sampling_params
from dapo.given import NOTHING, Given
from dapo.run import manifest
from dapo.run.checkpoint import Checkpoint
from dapo.run.directory import RunDirectory
from dapo.run.manifest import MadeOf
from dapo.run.view import View
from dapo.sampling import allowed_staleness, keep_mask
from dapo.types import Prompt, TrainState

Settings = dict[str, Any]

# Of `reward.*`, what decides whether an answer is right, by judge.
GRADING = {
    "grader": ("extract", "compat", "unevaluated", "convert_units", "symbolic_limit_s", "symbolic_memory_mb"),
    "python-tests": ("tests_column", "tests_limit_s", "tests_memory_mb"),
}


def made_of_now(
    config: Config,
    checked: CheckedData,
    data: LoadedData,
    tokenizer: Any,
    starting: manifest.Starting,
    eos_ids: Sequence[int],
    dtype: str,
    given: Given = NOTHING,
) -> MadeOf:
    """Digests of the problems in the files, tokenizer, template, prompts, starting model, functions and config.

    dtype: what is computed in, e.g. "bfloat16".
    """

    def rows(problems: Iterable[Problem]) -> Iterator[tuple[Any, ...]]:
        return ((problem.row.problem, problem.answer, problem.row.columns) for problem in problems)

    template = (config.data.template, config.data.system, config.model.chat_template_kwargs)
    chat_template = getattr(tokenizer, "chat_template", None)
    prompts = [prompt for source in data.by_source for prompt in source]
    training = [problem for source in checked.training for problem in source]
    tested = [problem for problems in checked.evaluation.values() for problem in problems]
    tests = [prompt for own in data.tests.values() for prompt in own]
    entries = _functions(all_rewards(config).values())
    functions = [name for name in (*entries, config.algorithm.objective) if ":" in name]
    digests = {
        "config": manifest.text_digest({k: v for k, v in resolve(config).items() if k not in manifest.NOTES}),
        "training_data": manifest.data_digest(rows(training)),
        "evaluation_data": manifest.data_digest(rows(tested)),
        "tokenizer": manifest.tokenizer_digest(tokenizer),
        "eos_ids": manifest.text_digest(sorted(eos_ids)),
        "template": manifest.text_digest(*template, chat_template),
        "prompts": manifest.prompts_digest([*prompts, *tests]),
        "starting_weights": starting.weights,
        "model_config": starting.config,
        "functions": manifest.functions_digest(functions, partial(_code_of, given=given)),
    }
    described = {
        "training_data": f"{len(training)} problems",
        "evaluation_data": f"{len(tested)} problems",
        "tokenizer": f"{len(tokenizer)} tokens",
        "eos_ids": ", ".join(map(str, sorted(eos_ids))),
        "template": f"data.template = {config.data.template}, data.system = {config.data.system or 'off'}",
        "prompts": f"{len(prompts)} prompts",
        "dtype": dtype,
    }
    return MadeOf(digests, described)


def _functions(rewards: Iterable[RewardConfig]) -> list[str]:
    """Every name in their reward.functions, once."""
    return list(dict.fromkeys(name for reward in rewards for name in function_names(reward)))


def _code_of(name: str, given: Given) -> bytes:
    """The file that a function comes from, or its own text where it was handed over."""
    if (code := given.code(name)) is not None:
        return code
    place = name.rpartition(":")[0]
    file = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None)
    return Path(file).read_bytes() if file is not None and Path(file).is_file() else b""


def record_start(run: RunDirectory, config: Config, data: LoadedData, made_of: MadeOf) -> None:
    """Writes manifest.json and config.resolved.json; with the second the folder is a run."""
    run.write_json(
        "manifest.json",
        {
            "recipe": config.name,
            "digests": {**made_of.digests, **_of_the_program(config)},
            "described": made_of.described,
            "directory": str(Path.cwd()),
            "model": config.model.path,
            "data": {
                "training_prompts": sum(map(len, data.by_source)),
                "evaluation_prompts": sum(map(len, data.tests.values())),
                "counts": dict(data.counts),
                "notes": data.notes,
            },
            "code": manifest.code_revision(),
            "versions": manifest.versions(),
            "machine": manifest.machine(),
            "resumed": [],
        },
    )
    run.write_json("config.resolved.json", resolve(config))


def _of_the_program(config: Config) -> dict[str, str]:
    """Digests of what acts on the data: recipe, this package's code, everything installed."""
    return {"recipe": recipe_digest(config), "code": manifest.code_digest(), "lock": manifest.lock_digest()}


def record_resume(
    run: RunDirectory,
    config: Config,
    made_of: MadeOf,
    found: Checkpoint | None,
    allowed: Collection[str],
    view: View,
) -> None:
    """Holds a resumed run against what it was made of; writes down what is new.

    Raises ResumeRefused, naming them, when data, tokenizer, template or starting weights are not the same
    and were not allowed to change.
    """
    written = run.read_json("manifest.json")
    if not isinstance(written, dict) or not isinstance(written.get("digests"), dict):
        raise ResumeRefused(f"{run.path / 'manifest.json'}: not the manifest of a run; put it back, or start a new run")
    first = MadeOf(written["digests"], written.get("described", {}))
    before = first if found is None else found.made_of
    changed = manifest.differences(before.digests, made_of.digests)
    _refuse(run, [name for name in changed if name not in allowed], before, made_of)
    _check_dtype(run, config, before, made_of)
    resolved = resolve(config)
    settings = manifest.config_changes(manifest.complete(run.read_json("config.resolved.json")), resolved)
    code, versions, machine = manifest.code_revision(), manifest.versions(), manifest.machine()
    earlier = written.get("resumed", [])
    last = (earlier or [written])[-1]
    rounding = ("torch_threads", "cpu_capability", "gpus")  # what else decides the last bit
    was, now = ({name: one.get(name) for name in rounding} for one in (last.get("machine", {}), machine))
    told = (("code", last.get("code"), code), ("versions", last.get("versions"), versions), ("machine", was, now))
    for name, old, new in told:
        if old != new:
            view.say(f"note: other {name} than before: {_short(old, new)} (recorded in manifest.json)")
    if before.digests.get("functions") != made_of.digests["functions"]:
        view.say("note: the files of reward.functions or algorithm.objective are not what they were")
        settings = [*settings, "functions"]
    for line in [*settings, *(f"{name} changed, as allowed" for name in changed)]:
        view.say(f"changed: {line}")
    entry = {
        "step": 0 if found is None else found.state.step,
        "checkpoint": None if found is None else found.path.name,
        "passed_over": [] if found is None else list(found.passed_over),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "changed": [*changed, *settings],
        "code": code,
        "versions": versions,
        "machine": machine,
        "digests": _of_the_program(config),
    }
    run.write_json("manifest.json", written | {"resumed": [*earlier, entry]})
    run.write_json("config.resolved.json", resolved)


def _refuse(run: RunDirectory, refused: Collection[str], before: MadeOf, now: MadeOf) -> None:
    """Raises ResumeRefused where a run would go on with what it did not begin with."""
    if refused:
        named = ", ".join(_difference(name, before, now) for name in refused)
        allow = " ".join(f"--allow-changed {name}" for name in refused)
        raise ResumeRefused(
            f"--resume {run.path}: not what the run began with: {named}; put it back, start a new run, "
            f"or go on all the same with {allow}"
        )


def _check_dtype(run: RunDirectory, config: Config, before: MadeOf, now: MadeOf) -> None:
    """A machine that multiplies bfloat16 takes another type than one that does not, which nobody asked for."""
    old, new = (one.described.get("dtype") for one in (before, now))
    if config.model.dtype == "auto" and old is not None and old != new:
        raise ResumeRefused(
            f'--resume {run.path}: it computed in {old}, and model.dtype = "auto" is {new} on this machine; '
            f"say model.dtype={old} to go on as it was, or model.dtype={new} to change it"
        )


def check_nothing_lost(run: RunDirectory, config: Config) -> None:
    """Whether a run without checkpoints may start again. Raises ResumeRefused when it should have had some."""
    place, every = run.checkpoints, config.checkpoint.every
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise ResumeRefused(f"{place}: is not a folder that can be read (an unmounted disk?); put it back")
    done = max((row["step"] for row in run.metrics()), default=0)
    if every is not None and config.checkpoint.on_failure == "stop" and done > 2 * every:
        raise ResumeRefused(
            f"{run.path}: metrics.jsonl holds {done} steps, but there is no checkpoint in {place}; "
            "put them back, or begin a new run"
        )


def check_adapters(before: Config, now: Config) -> None:
    """Whether the run's learner trains what its checkpoints hold. Raises ResumeRefused, naming the setting."""
    for name in ("lora_rank", "lora_alpha", "lora_targets"):
        old, new = ("off" if (value := getattr(one.learner, name)) is None else value for one in (before, now))
        if old != new:
            raise ResumeRefused(
                f"learner.{name} = {new}, but the run's checkpoints were trained with {old}; set it as it was, or "
                "begin a new run from dapo export"
            )


def check_carried(config: Config, state: TrainState) -> None:
    """Whether the settings still fit the groups that a checkpoint carries. Raises ResumeRefused, naming the setting."""
    sampling, most = config.sampling, allowed_staleness(config)
    version = state.version + (state.pending is not None)  # from which the next filling is trained on
    informative = 0
    for group, kept in zip(state.carried, keep_mask(state.carried, sampling.filter), strict=True):
        least = sampling.min_responses_per_prompt or sampling.responses_per_prompt
        if not least <= len(group.rollouts) <= sampling.responses_per_prompt:
            raise ResumeRefused(
                f"sampling.responses_per_prompt = {sampling.responses_per_prompt}, but the checkpoint carries "
                f"{len(state.carried)} groups of {len(group.rollouts)}; keep it until they are used up"
            )
        steps_to_wait = informative // sampling.prompts_per_step
        if steps_to_wait and sampling.surplus == "discard" and not config.pipeline.max_staleness:
            break
        versions = [version for r in group.rollouts for version, _ in r.response.token_versions]
        if versions and version + steps_to_wait - min(versions) > most:
            raise ResumeRefused(
                f"the checkpoint carries {len(state.carried)} groups, and some would be trained on more than "
                f"max_staleness = {most} versions late; keep sampling.surplus, pipeline.*, "
                "max_staleness and prompts_per_step as they were until they are used up"
            )
        informative += kept


def _difference(name: str, before: MadeOf, now: MadeOf) -> str:
    """One root that differs, in words."""
    old, new = before.described.get(name), now.described.get(name)
    if old is None or new is None:
        return name
    return f"{name} ({old} then, {new} now)" if old != new else f"{name} ({new}, but not the same)"


def _short(old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        return ", ".join(f"{name} {old.get(name)} -> {new.get(name)}" for name in names)
    return f"{old} -> {new}"


def evaluation_settings(
    config: Config, sets: Mapping[str, Sequence[Problem]], prompts: Sets, given: Given = NOTHING
) -> Settings:
    """What decides an evaluation's figures beside the model: see `evals.settings`.

    Problems are known by text and answer, whatever words are put around them (and by the other columns where
    functions or tests read those), and by what is asked; the grader by its settings, its code and the library
    that reads expressions.
    """
    params = sampling_params(config)
    judge = next((name for name in function_names(config.reward) if name in GRADING), None)
    own = {name: sorted({p.grading for p in problems} - {""}) for name, problems in sets.items()}
    rewards = all_rewards(config)
    names = _functions([config.reward, *(rewards[grading] for gradings in own.values() for grading in gradings)])
    reward = config.reward.model_dump(mode="json")
    grader = {"judge": judge} | {key: reward[key] for key in GRADING.get(judge or "", ())}
    if judge is None:
        grader["functions"] = reward["functions"]
    if any(own.values()):
        grader["by_set"] = {name: [json.loads(text) for text in texts] for name, texts in own.items() if texts}
    columns = names != ["grader"]
    return {
        "sampling": {
            "k": params.n,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_response_tokens": params.max_new_tokens,
            "stop": list(params.stop),
            "seed": config.eval.seed,
        },
        "prompt": {
            "template": config.data.template,
            "system": config.data.system,
            "chat_template_kwargs": config.model.chat_template_kwargs,
        },
        "grader": grader
        | {
            "code": manifest.folder_digest(Path(dapo.reward.__file__).parent)[:16],
            "math_verify": manifest.versions().get("math-verify"),
        },
        "reward": {
            "functions": reward["functions"],
            "function_code": manifest.functions_digest(
                [name for name in names if ":" in name], partial(_code_of, given=given)
            )[:16],
        },
        "sets": {name: _set_settings(problems, prompts[name], columns) for name, problems in sets.items()},
    }


def _set_settings(problems: Sequence[Problem], prompts: Sequence[Prompt], columns: bool) -> Settings:
    """What is asked in a set. columns: whether grading looks at the other columns."""
    return {
        "problems": len(problems),
        "digest": manifest.data_digest(
            (p.row.problem, p.answer, *([p.row.columns] if columns else [])) for p in problems
        ),
        "asked": manifest.text_digest([prompt.id for prompt in prompts])[:16],
    }
