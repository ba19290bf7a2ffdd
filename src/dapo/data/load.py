"""Everything `data.*` and `eval.data` ask for, read and checked: before the model, then with the tokenizer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dapo.config.reward import function_names
from dapo.config.schema import Config, SourceConfig
from dapo.config.sets import HOLDOUT, evaluation_sources
from dapo.data import named
from dapo.data.prompts import (
    CheckAnswers,
    LoadedData,
    Problem,
    problem_text,
    read_problems,
    source_list,
    take_holdout,
    tokenise,
)
from dapo.data.ratings import within_rates
from dapo.data.template import PromptTemplate, Wording
from dapo.errors import ConfigError, DataError
from dapo.types import Prompt


@dataclass(slots=True)
class CheckedData:
    """Problems read and validated, not yet tokenised: needs no model."""

    training: list[list[Problem]]
    weights: list[float] | None
    evaluation: dict[str, list[Problem]]
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def check_data(config: Config, check_answers: CheckAnswers | None) -> CheckedData:
    """Reads every source. Training problems that are also evaluation problems are dropped and counted.

    Raises:
        DataError: naming file, row and mend.
    """
    counts: Counter[str] = Counter()
    notes: list[str] = []
    sources = source_list(config)
    wording = Wording(config.data.template)
    problems = read_problems(
        sources,
        wording=wording,
        check_answers=check_answers,
        bad_answers=config.data.bad_answers,
        counts=counts,
        notes=notes,
    )
    problems = within_rates(problems, config, counts, notes)  # before the holdout, which should look like training
    weights = [s.weight for s in sources if s.weight is not None] or None
    training, held_out = take_holdout(problems, config.data.holdout, weights)
    evaluation = evaluation_problems(config, held_out, check_answers, counts, notes)
    tested = {p.id for problems in evaluation.values() for p in problems}
    for index, source in enumerate(training):
        training[index] = [p for p in source if p.id not in tested]
        counts["also_in_eval"] += len(source) - len(training[index])
        if not training[index]:
            raise DataError(f"{sources[index].source}: all its problems are evaluation problems")
    check_enough(config, sum(map(len, training)))
    return CheckedData(training, weights, evaluation, counts, notes)


def check_evaluation(config: Config, check_answers: CheckAnswers | None) -> CheckedData:
    """As `check_data`, but reads the training sources only where evaluation holds some of them out."""
    if any(source.source == HOLDOUT for source in evaluation_sources(config).values()):
        return check_data(config, check_answers)
    counts: Counter[str] = Counter()
    notes: list[str] = []
    return CheckedData([], None, evaluation_problems(config, [], check_answers, counts, notes), counts, notes)


def evaluation_problems(
    config: Config,
    held_out: list[Problem],
    check_answers: CheckAnswers | None,
    counts: Counter[str],
    notes: list[str],
) -> dict[str, list[Problem]]:
    """The problems of `eval.data`, by set. What can't be graded of a named set is left out and told of: nobody
    can mend a published file.

    Raises:
        DataError: a file or row can't be used, or the validation set shares a problem with a test set.
    """
    wording = Wording(config.data.template)
    result: dict[str, list[Problem]] = {}
    for name, source in evaluation_sources(config).items():
        if source.source == HOLDOUT:
            result[name] = held_out
            continue
        check_judge(config, source)
        own: Counter[str] = Counter()
        (result[name],) = read_problems(
            [source],
            wording=wording,
            check_answers=check_answers,
            bad_answers="drop" if named.is_named(source.source) else config.data.bad_answers,
            counts=own,
            notes=notes,
            data_dir=config.eval.data_dir,
        )
        counts.update({f"eval_{key}": value for key, value in own.items()})
        notes += set_notes(name, source.source, own, result[name], config)
    check_validation(config, result, notes)
    return result


def set_notes(name: str, source: str, counts: Counter[str], problems: list[Problem], config: Config) -> list[str]:
    """What a person should know of a set: repeated rows, a size that is not the published one."""
    notes, rows = [], counts["rows"] - counts["bad_answers"]
    if rows > len(problems):
        notes.append(
            f"{name}: {rows} rows hold {len(problems)} distinct problems; each is sampled eval.k = {config.eval.k} "
            "times, however often it stands there"
        )
    if named.is_named(source) and (note := named.note(source, len(problems) + counts["bad_answers"])):
        notes.append(note)
    return notes


def check_judge(config: Config, source: SourceConfig) -> None:
    """A named set of programs needs the judge that runs them. Raises ConfigError."""
    name = source.source
    if not named.is_named(name) or named.SETS[name].judge != "python-tests":
        return
    if "python-tests" not in function_names(source.reward.over(config.reward)):
        raise ConfigError(
            f"eval.data: {name} is judged by running programs; evaluate it alone, with "
            'reward.functions=["python-tests"], or give its table reward = {functions = ["python-tests"]}'
        )
    if source.reward.functions is not None and config.data.template == "dapo":
        raise ConfigError(
            f'eval.data: {name} asks for programs, and data.template = "dapo" for an answer line; evaluate it alone, '
            'or set data.template = "chat"'
        )


def check_validation(config: Config, sets: dict[str, list[Problem]], notes: list[str]) -> None:
    """Checkpoints are picked on a set that is not tested on; notes where that can't be.

    Raises DataError naming a problem in both.
    """
    picked = config.checkpoint.best_on
    if not config.checkpoint.keep_best:
        return
    if picked is None:
        notes += [
            f"checkpoint.keep_best picks by {name}, the only evaluation set: the figure of a picked checkpoint on it "
            "is too high; add a test set to eval.data"
            for name in sets
        ]
        return
    if named.is_named(picked):
        notes.append(f"checkpoint.best_on = {picked}: a public test set picks checkpoints; do not report on it")
    validation = {plain_text(problem): problem for problem in sets[picked]}
    for name, problems in sets.items():
        both = [problem for problem in problems if plain_text(problem) in validation]
        if name != picked and both:
            raise DataError(
                f"{both[0].row.where} is also {validation[plain_text(both[0])].row.where} ({len(both)} such problems): "
                f"checkpoint.best_on = {picked} would pick checkpoints on the test set {name}; take them out of one"
            )


def plain_text(problem: Problem) -> str:
    """A problem's text whatever its case and blanks."""
    return " ".join(problem_text(problem.row.problem).casefold().split())


def tokenise_data(config: Config, checked: CheckedData, tokenizer: Any) -> LoadedData:
    """Applies template and limits.

    Raises:
        DataError: nothing is left, or an evaluation prompt is over the limit (never dropped: the
            figure would be over another set).
    """
    template = PromptTemplate(config, tokenizer)
    counts, notes = checked.counts, checked.notes
    by_source: list[list[Prompt]] = []
    for problems in checked.training:
        prompts = tokenise(problems, template, config, counts, notes)
        if not prompts:
            raise DataError(
                f"{problems[0].row.where} and all others of this source are over data.max_prompt_tokens = "
                f"{config.data.max_prompt_tokens}; raise it"
            )
        by_source.append(prompts)
    check_enough(config, sum(map(len, by_source)))
    return LoadedData(by_source, checked.weights, tokenise_evaluation(config, checked, tokenizer), counts, notes)


def check_enough(config: Config, prompts: int) -> None:
    """One round has to be there when the data are not repeated. Raises ConfigError."""
    drawn = config.sampling.gen_prompts or config.sampling.prompts_per_step
    if not config.data.repeat and prompts < drawn:
        raise ConfigError(
            f"data.repeat = false, and {prompts} prompts are fewer than the {drawn} of one round "
            "(sampling.gen_prompts or prompts_per_step); lower it or set data.repeat = true"
        )


def tokenise_evaluation(config: Config, checked: CheckedData, tokenizer: Any) -> dict[str, list[Prompt]]:
    """The evaluation prompts; one over the limit is refused, since dropping it would change the set."""
    changed = {"overlong_prompts": "refuse", "rating_column": None}
    strict = config.model_copy(update={"data": config.data.model_copy(update=changed)})
    template = PromptTemplate(config, tokenizer)
    return {
        name: tokenise(problems, template, strict, checked.counts, checked.notes)
        for name, problems in checked.evaluation.items()
    }
