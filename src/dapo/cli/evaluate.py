"""dapo eval: sample, grade, and say what the figures are worth."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dapo.cli.show import progress_bar, show_notes, show_tables
from dapo.cli.use import RECIPE
from dapo.cli.words import SETTINGS, overrides_only
from dapo.config.load import from_run, from_tree, resolve
from dapo.config.schema import Config
from dapo.config.sets import evaluation_sources
from dapo.errors import ConfigError, EngineError, Interrupted, UserError
from dapo.printable import printable
from dapo.rollout.openai_api import KEY_VARIABLE
from dapo.targets import config_of_model, resolve_target, split_step

if TYPE_CHECKING:
    from dapo.evals.evaluation import Evaluation
    from dapo.evals.store import EvaluationDirectory
    from dapo.evaluator import Evaluator


MEASURED = ("weights", "dtype", "chat_template")  # what the settings say of a model once it is loaded
OVERRIDES = {
    "data": "data", "data_dir": "data_dir", "k": "k", "temperature": "temperature", "top_p": "top_p",
    "max_tokens": "max_response_tokens", "seed": "seed",
}  # fmt: skip


@click.command("eval", context_settings=SETTINGS)
@click.argument("model", required=False, metavar="[MODEL|RUN[@STEP]]")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@RECIPE
@click.option("--data", metavar="SET,FILE,...", help="Named sets and files instead of the recipe's eval.data.")
@click.option("--data-dir", metavar="DIR", help="Folder with the named sets' files; else they are fetched.")
@click.option("--k", type=click.IntRange(1), help="Samples per problem [of the run or recipe; 32].")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy [of the run or recipe; 1.0].")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="[of the run or recipe; 0.7]")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest response [of the run or recipe; 20480].")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the samples [of the run or recipe; 0].")
@click.option("--endpoint", metavar="URL", help="OpenAI-compatible server that has MODEL: http://host:port/v1.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests at a time [16].")
@click.option("--api-key-env", metavar="NAME", help=f"Environment variable with the server's key [{KEY_VARIABLE}].")
@click.option("-o", "--output-dir", metavar="DIR", help="Where samples and figures go [evals/MODEL-TIME].")
@click.option("--resume", metavar="DIR|latest", help="Go on with an interrupted evaluation.")
@click.option("--problems", is_flag=True, help="Print the table of problems too.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def evaluate(model: str | None, words: tuple[str, ...], **options: Any) -> None:
    """Evaluate a model: avg@k, pass@k and maj@k, with intervals.

    \b
    dapo eval runs/quickstart-...                   a run: its data, template and grading
    dapo eval MODEL --data aime24,math500 --k 32    a folder, Hugging Face id or .gguf
    dapo eval NAME --data amc23 --endpoint URL      a model behind a server

    A bare MODEL is asked in the paper's words (data.template=dapo) unless --recipe or key=value words say
    otherwise. Named sets: aime24, aime25, amc23, math500, gsm8k, olympiad, minerva, livecodebench.

    Every sample is kept in the output folder as it comes; dapo browse shows them, dapo compare sets two
    such folders against each other.
    """
    from dapo.evals.store import EvaluationDirectory

    if options["resume"]:
        given = [name for name in (*OVERRIDES, "recipe", "output_dir") if options[name] is not None]
        if model or given:
            raise UserError("--resume takes everything from the folder; leave the model and other options out")
        directory = EvaluationDirectory.open(options["resume"])
        asked = _asked(directory, options)
    else:
        if not model:
            raise UserError("name a MODEL or RUN, or --resume DIR")
        asked = _ask(model, words, options)
        directory = EvaluationDirectory.place(str(asked.about["name"]), options["output_dir"])
    made = _evaluator(asked)
    try:
        directory.hold()
        _run(directory, made, asked, options)
    finally:
        made.engine.close()
        directory.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be evaluated. about: what the settings say of the model. note: for a person.

    endpoint, key_variable: of a server; its address is not what makes an evaluation, its model is.
    where: the folder that relative paths are of, when that is another.
    """

    config: Config
    about: dict[str, Any]
    endpoint: str | None = None
    key_variable: str = KEY_VARIABLE
    concurrency: int | None = None
    note: str = ""
    where: str = ""


def _ask(model: str, words: tuple[str, ...], options: Mapping[str, Any]) -> Asked:
    """What these words ask for. Raises UserError."""
    from dapo import evaluator

    for option, field in OVERRIDES.items():
        if options[option] is not None and any(word.startswith(f"eval.{field}=") for word in words):
            raise UserError(f"--{option.replace('_', '-')} and eval.{field} say the same thing; leave one out")
    endpoint = options["endpoint"]
    if not endpoint and (alone := [name for name in ("api_key_env", "concurrency") if options[name] is not None]):
        raise UserError(f"--{alone[0].replace('_', '-')} is for a server; name it with --endpoint URL")
    if endpoint:
        config = config_of_model(model, options["recipe"], overrides_only(words), "dapo")
        about: dict[str, Any] = {"name": model, "path": model}
    else:
        config = resolve_target(model, options["recipe"], overrides_only(words), template="dapo")
        about = {"name": model, "path": config.model.path}
    given = {field: options[name] for name, field in OVERRIDES.items() if options[name] is not None}
    config = from_tree(resolve(config.model_copy(update={"eval": config.eval.model_copy(update=given)})))
    return Asked(
        config=evaluator.prepare(config),
        about=about,
        endpoint=endpoint,
        key_variable=options["api_key_env"] or KEY_VARIABLE,
        concurrency=options["concurrency"],
        note="" if endpoint else _picked(model, config),
    )


def _picked(model: str, config: Config) -> str:
    """What has to be told of RUN@best when it is measured on the set that picked it."""
    from dapo import build
    from dapo.run.directory import RunDirectory

    name, step = split_step(model)
    if step != "best":
        return ""
    trained = build.config_of_run(RunDirectory.open(name))
    picked = trained.checkpoint.best_on or next(iter(evaluation_sources(trained)), "")
    if picked not in evaluation_sources(config):
        return ""
    return f"{picked} picked this checkpoint, so the figure on it is too high; report another set"


def _asked(directory: EvaluationDirectory, options: Mapping[str, Any]) -> Asked:
    """What a folder was begun with. A server may have moved, and its key another place."""
    settings = directory.settings()
    try:
        config = from_run(settings["config"])
        server = settings.get("server") or {}
        about = {key: value for key, value in settings["model"].items() if key not in MEASURED}
        there, variable, where = server.get("endpoint"), server.get("key_variable", KEY_VARIABLE), settings["directory"]
        about["name"], about["path"]  # both are needed
    except (KeyError, TypeError, AttributeError, ConfigError):
        raise UserError(f"{directory.path}: its settings.json is damaged; evaluate again into another folder") from None
    if not there and (given := [n for n in ("endpoint", "api_key_env", "concurrency") if options[n] is not None]):
        raise UserError(f"--{given[0].replace('_', '-')}: {directory.path} evaluates a model that is loaded here")
    return Asked(
        config=config,
        about=about,
        endpoint=options["endpoint"] or there,
        key_variable=options["api_key_env"] or variable,
        concurrency=options["concurrency"],
        where="" if where == str(Path.cwd()) else f" (the evaluation was started in {where}, which its paths are of)",
    )


def _run(directory: EvaluationDirectory, made: Evaluator, asked: Asked, options: Mapping[str, Any]) -> None:
    from dapo.evals.tables import markdown
    from dapo.run import manifest
    from dapo.run.signals import StopRequest

    name = printable(str(asked.about["name"]))
    server = {"endpoint": asked.endpoint, "key_variable": asked.key_variable} if asked.endpoint else None
    settings = made.settings | {
        "server": server,
        "config": resolve(asked.config),
        "directory": str(Path.cwd()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": manifest.versions(),
        "machine": platform.machine(),
    }
    there = directory.begin(settings)
    for note in [*made.notes, *([asked.note] if asked.note else [])]:
        click.echo(f"note: {note}", err=True)
    if made.config.eval.temperature == 0 and made.config.eval.k > 1:
        click.echo(
            "note: temperature 0 is greedy: the samples of a problem are all the same; --k 1 says as much", err=True
        )
    problems = sum(map(len, made.sets.values()))
    going_on = f"; {there} problems are sampled already" if there else ""
    click.echo(f"{name}: {problems} problems x {made.config.eval.k} samples -> {directory.path}{going_on}", err=True)
    with StopRequest(lambda text: click.echo(text, err=True), "keeping what is sampled") as stop:
        result = _sample(made, directory, lambda: stop.requested)
    directory.finish(result, markdown(result, name))
    _show(result, directory, options)


def _evaluator(asked: Asked) -> Evaluator:
    from dapo import evaluator

    try:
        if not asked.endpoint:
            return evaluator.for_model(asked.config, asked.about)
        key = os.environ.get(asked.key_variable)
        if asked.key_variable != KEY_VARIABLE and not key:
            raise UserError(f"--api-key-env {asked.key_variable}: this environment variable is empty or not set")
        endpoint = evaluator.Endpoint(
            url=asked.endpoint, api_key=key, key_variable=asked.key_variable, concurrency=asked.concurrency or 16
        )
        return evaluator.for_endpoint(asked.config, asked.about, endpoint)
    except UserError as error:
        raise type(error)(error.message + asked.where) from error


def _sample(made: Evaluator, directory: EvaluationDirectory, stopped: Callable[[], bool]) -> Evaluation:
    from dapo.evals.run import evaluate as run_evaluation

    try:
        with progress_bar(made.sets) as progress:
            return run_evaluation(
                made.engine, made.grader, made.sets, made.config, store=directory, stopped=stopped, progress=progress
            )
    except (Interrupted, EngineError, UserError) as error:
        done = sum(len(directory.rows(name)) for name in made.sets)
        if not done and not isinstance(error, Interrupted):
            directory.forget()
            raise
        why = "" if isinstance(error, Interrupted) else f"{error.message}; "
        total = sum(map(len, made.sets.values()))
        where = shlex.quote(str(directory.path))
        raise Interrupted(
            f"{why}{done} of {total} problems are sampled; go on with: dapo eval --resume {where}"
        ) from None


def _show(result: Evaluation, directory: EvaluationDirectory, options: Mapping[str, Any]) -> None:
    from dapo.evals.tables import evaluation_tables, notes, problem_table

    if options["as_json"]:
        click.echo(json.dumps(result.summary(), ensure_ascii=False))
        return
    tables = evaluation_tables(result)
    if options["problems"]:
        tables += [problem_table(figures) for figures in result.sets]
    show_tables(tables)
    show_notes(notes(result))
    where = shlex.quote(str(directory.path))
    click.echo(f"{where}: samples/, figures.json, figures.md (dapo browse {where})", err=True)
