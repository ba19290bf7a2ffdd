"""dapo eval: sample, grade, and say what the figures are worth."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dapo.cli.show import progress_bar, show_notes, show_tables
from dapo.cli.use import RECIPE, resolve_target, split_step
from dapo.cli.words import SETTINGS
from dapo.config.load import from_tree, resolve
from dapo.config.schema import Config
from dapo.errors import ConfigError, Interrupted, UserError
from dapo.rollout.openai_api import KEY_VARIABLE

if TYPE_CHECKING:
    from dapo.evaluate.evaluation import Evaluation
    from dapo.evaluate.store import EvaluationDirectory
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
@click.option("--k", type=click.IntRange(1), help="Samples per problem [32].")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy [1.0].")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="[0.7]")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest response [that of the recipe, or 20480].")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the samples [0].")
@click.option("--endpoint", metavar="URL", help="OpenAI-compatible server that has MODEL: http://host:port/v1.")
@click.option("--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Requests at a time.")
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
    from dapo.evaluate.store import EvaluationDirectory

    if options["resume"]:
        given = [name for name in (*OVERRIDES, "recipe", "output_dir") if options[name] is not None]
        if model or given:
            raise UserError("--resume takes everything from the folder; leave the model and other options out")
        directory = EvaluationDirectory.open(options["resume"])
        settings = directory.settings()
        config, about = _asked(directory, settings)
    else:
        if not model:
            raise UserError("name a MODEL or RUN, or --resume DIR")
        config, about = _target(model, words, options)
        directory = EvaluationDirectory.place(str(about["name"]), options["output_dir"])
    made = _evaluator(config, about, options)
    directory.hold()
    try:
        _run(directory, made, about, options)
    finally:
        made.engine.close()
        directory.release()


def _target(model: str, words: tuple[str, ...], options: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
    """(configuration, what the settings say of the model)."""
    from dapo import evaluator

    if options["endpoint"] and (Path(model) / "config.resolved.json").is_file():
        raise UserError(f"{model} is a run here; with --endpoint comes the name that the server knows the model by")
    config = resolve_target(model, options["recipe"], words, template="dapo")
    for option, field in OVERRIDES.items():
        if options[option] is not None and any(word.startswith(f"eval.{field}=") for word in words):
            raise UserError(f"--{option.replace('_', '-')} and eval.{field} say the same thing; leave one out")
    given = {field: options[name] for name, field in OVERRIDES.items() if options[name] is not None}
    config = from_tree(resolve(config.model_copy(update={"eval": config.eval.model_copy(update=given)})))
    name, step = split_step(model)
    about: dict[str, Any] = {"name": model, "path": model if options["endpoint"] else config.model.path}
    if step is not None:
        about = {"name": name, "step": step, "path": config.model.path}
    if options["endpoint"]:
        about["endpoint"] = options["endpoint"]
    return evaluator.prepare(config), about


def _asked(directory: EvaluationDirectory, settings: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
    try:
        about = {key: value for key, value in settings["model"].items() if key not in MEASURED}
        return from_tree(settings["config"]), about
    except (KeyError, TypeError, AttributeError, ConfigError):
        raise UserError(f"{directory.path}: its settings.json is damaged; evaluate again into another folder") from None


def _run(directory: EvaluationDirectory, made: Evaluator, about: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    from dapo.evaluate.tables import markdown
    from dapo.run import manifest
    from dapo.run.signals import StopRequest

    settings = made.settings | {
        "config": resolve(made.config),
        "directory": str(Path.cwd()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": manifest.versions(),
        "machine": platform.machine(),
    }
    there = directory.begin(settings)
    for note in made.notes:
        click.echo(f"note: {note}", err=True)
    if made.config.eval.temperature == 0 and made.config.eval.k > 1:
        click.echo(
            "note: temperature 0 is greedy: the samples of a problem are all the same; --k 1 says as much", err=True
        )
    problems = sum(map(len, made.sets.values()))
    going_on = f"; {there} problems are sampled already" if there else ""
    click.echo(
        f"{about['name']}: {problems} problems x {made.config.eval.k} samples -> {directory.path}{going_on}", err=True
    )
    with StopRequest(lambda text: click.echo(text, err=True), "keeping what is sampled") as stop:
        result = _sample(made, directory, lambda: stop.requested)
    directory.finish(result, markdown(result, f"{about['name']}"))
    _show(result, directory, options)


def _evaluator(config: Config, about: Mapping[str, Any], options: Mapping[str, Any]) -> Evaluator:
    from dapo import evaluator

    if "endpoint" not in about:
        return evaluator.for_model(config, about)
    variable = options["api_key_env"] or KEY_VARIABLE
    key = os.environ.get(variable)
    if options["api_key_env"] and not key:
        raise UserError(f"--api-key-env {variable}: this environment variable is empty or not set")
    endpoint = evaluator.Endpoint(url=str(about["endpoint"]), api_key=key, concurrency=options["concurrency"])
    return evaluator.for_endpoint(config, about, endpoint)


def _sample(made: Evaluator, directory: EvaluationDirectory, stopped: Any) -> Evaluation:
    from dapo.evaluate.run import evaluate as run_evaluation

    try:
        with progress_bar(made.sets) as progress:
            return run_evaluation(
                made.engine, made.grader, made.sets, made.config, store=directory, stopped=stopped, progress=progress
            )
    except Interrupted:
        done = sum(len(directory.rows(name)) for name in made.sets)
        total = sum(map(len, made.sets.values()))
        raise Interrupted(
            f"{done} of {total} problems are sampled; go on with: dapo eval --resume {directory.path}"
        ) from None


def _show(result: Evaluation, directory: EvaluationDirectory, options: Mapping[str, Any]) -> None:
    from dapo.evaluate.tables import evaluation_tables, notes, problem_table

    if options["as_json"]:
        click.echo(json.dumps(result.summary(), ensure_ascii=False))
        return
    tables = evaluation_tables(result)
    if options["problems"]:
        tables += [problem_table(figures) for figures in result.sets]
    show_tables(tables)
    show_notes(notes(result))
    click.echo(f"{directory.path}: samples/, figures.json, figures.md (dapo browse {directory.path})", err=True)
