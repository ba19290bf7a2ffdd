"""dapo data: from published or own problems to a training set."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from dapo.cli.evaluate import evaluate
from dapo.cli.use import RECIPE
from dapo.cli.words import SETTINGS
from dapo.errors import UserError
from dapo.printable import printable
from dapo.rollout.openai_api import KEY_VARIABLE

HELP = {"help_option_names": ["-h", "--help"]}


@click.group()
def data() -> None:
    """Prepare, look at and rate training data."""


@data.command(context_settings=HELP)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--output-dir", required=True, metavar="DIR", help="Folder to write: train.parquet, card.json.")
@click.option("--rejects", metavar="FILE", help="Write the dropped rows there, with their reasons (JSON lines).")
@click.option("--overwrite", is_flag=True, help="Replace a prepared folder.")
@click.option("--prompt-column", default="auto", metavar="NAME", help="Column of the problem [by name].")
@click.option("--answer-column", default="auto", metavar="NAME", help="Column of the gold answer [by name].")
@click.option("--keep", multiple=True, metavar="NAME", help="Keep this column of the sources too.")
@click.option("--max-rows", type=click.IntRange(1), help="Read only the first rows of each source.")
@click.option("--template", metavar="TEXT", help='Stored wording to take off: "Solve this: {{ problem }}".')
@click.option("--licence", multiple=True, metavar="SOURCE=TEXT", help="Licence of a source, for the card.")
@click.option("--against", metavar="SET,FILE,...", help="Evaluation sets whose problems must not be in the data.")
@click.option("--data-dir", metavar="DIR", help="Folder with the named sets' files; else they are fetched.")
@click.option("--ngram", type=click.Choice(["8", "10", "13"]), default="10", help="Words of an n-gram [10].")
@click.option(
    "--coverage", type=click.FloatRange(0, 1, min_open=True), default=0.5,
    help="Least share of a problem's n-grams in one row [0.5].",
)  # fmt: skip
@click.option(
    "--similarity", type=click.FloatRange(0, 1, min_open=True), default=0.8,
    help="Least similarity (Jaccard) of near-duplicates [0.8].",
)  # fmt: skip
@click.option("--near-duplicates", type=click.Choice(["drop", "keep"]), default="drop", help="[drop]")
@click.option(
    "--conflicts", type=click.Choice(["drop", "first"]), default="drop",
    help="Problems with several answers: drop them, or keep the first [drop].",
)  # fmt: skip
@click.option(
    "--integers", type=click.Choice(["off", "rewrite", "only"]), default="off",
    help="Rewrite answers into integers where it can be proved right; only: and drop the others [off].",
)  # fmt: skip
@click.option("--rewriter", type=click.Choice(["rule", "llm"]), default="rule", help="llm: ask a model too [rule].")
@click.option("--endpoint", metavar="URL", help="Of --rewriter llm: OpenAI-compatible server.")
@click.option("--model", metavar="NAME", help="Of --rewriter llm: its model.")
@click.option("--api-key-env", metavar="NAME", help=f"Environment variable with the server's key [{KEY_VARIABLE}].")
@click.option("--tokenizer", metavar="MODEL", help="Count lengths in this model's tokens too.")
@click.option("--json", "as_json", is_flag=True, help="Print the card.")
def prepare(sources: tuple[str, ...], **given: Any) -> None:
    """Make a clean training set of raw problems.

    \b
    dapo data prepare dapo-math-17k.parquet -o data/train --against aime24,math500
    dapo data prepare hf:openai/gsm8k:main/train* mine.csv -o data/train --integers rewrite

    SOURCE is a .parquet, .jsonl, .json, .csv or .tsv file, a prepared folder, hf:OWNER/NAME[@REVISION][:GLOB],
    modelscope: likewise, or reasoning-gym:TASK[:SIZE[:SEED]]. Layouts are recognised (verl's, prompt or problem
    with answer or solution, GSM8K's ####), and stored prompt templates taken off.

    The steps: validate, drop duplicates, conflicting answers, near-duplicates and the problems of evaluation
    sets, make integer answers. Every drop has a reason and a count. Train on it with data.source=DIR.
    """
    from dapo import curate
    from dapo.data.prepare.plan import Options
    from dapo.data.prepare.reading import Columns

    options = Options(
        sources=sources,
        columns=Columns(prompt=given["prompt_column"], answer=given["answer_column"]),
        max_rows=given["max_rows"],
        template=given["template"],
        licences=_licences(given["licence"], sources),
        against=tuple(name.strip() for name in (given["against"] or "").split(",") if name.strip()),
        data_dir=given["data_dir"],
        ngram=int(given["ngram"]),
        coverage=given["coverage"],
        similarity=given["similarity"],
        near_duplicates=given["near_duplicates"] == "drop",
        conflicts=given["conflicts"],
        integers=given["integers"],
        rewriter=given["rewriter"],
        keep=given["keep"],
    )
    made = curate.run(
        options,
        Path(given["output_dir"]),
        rejects=Path(given["rejects"]) if given["rejects"] else None,
        overwrite=given["overwrite"],
        tokenizer=given["tokenizer"],
        server=_server(given),
        say=lambda line: click.echo(printable(line), err=True),
    )
    if given["as_json"]:
        click.echo(json.dumps(made.card, ensure_ascii=False))
        return
    _show(made.card, given["output_dir"])


def _licences(words: tuple[str, ...], sources: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for word in words:
        source, equals, text = word.rpartition("=")
        if not equals or source not in sources:
            raise UserError(f"--licence {word}: write SOURCE=TEXT with one of {', '.join(sources)}")
        found[source] = text
    return found


def _server(given: dict[str, Any]) -> Any:
    from dapo.curate import Server

    alone = [name for name in ("endpoint", "model", "api_key_env") if given[name] is not None]
    if given["rewriter"] == "rule":
        if alone:
            raise UserError(f"--{alone[0].replace('_', '-')} is for --rewriter llm")
        return None
    if given["integers"] == "off":
        raise UserError("--rewriter llm makes integer answers; add --integers rewrite")
    if not given["endpoint"] or not given["model"]:
        raise UserError("--rewriter llm needs --endpoint URL and --model NAME")
    variable = given["api_key_env"] or KEY_VARIABLE
    key = os.environ.get(variable)
    if given["api_key_env"] and not key:
        raise UserError(f"--api-key-env {variable}: this environment variable is empty or not set")
    return Server(url=given["endpoint"], model=given["model"], api_key=key, key_variable=variable)


def _show(card: dict[str, Any], out: str) -> None:
    from dapo.cli.data_tables import card_notes, steps_table
    from dapo.cli.show import show_notes, show_tables

    show_tables([steps_table(card)])
    show_notes(card_notes(card))
    click.echo(printable(f"{out}: train.parquet, card.json (dapo data inspect {out})"), err=True)


@data.command(context_settings=HELP)
@click.argument("file", metavar="FILE")
@click.option("--prompt-column", default="auto", metavar="NAME", help="Column of the problem [by name].")
@click.option("--answer-column", default="auto", metavar="NAME", help="Column of the gold answer [by name].")
@click.option("--samples", type=click.IntRange(0), default=3, help="Rows to show [3].")
@click.option("--seed", type=click.IntRange(0), default=0, help="Which rows [0].")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def inspect(file: str, prompt_column: str, answer_column: str, samples: int, seed: int, as_json: bool) -> None:
    """Show what a data file holds: its card, samples, lengths.

    FILE is a prepared folder, or any source that dapo data prepare reads.
    """
    from dapo.cli.data_tables import card_notes, inspection_tables, sample_lines
    from dapo.cli.show import show_notes, show_tables
    from dapo.data.prepare.inspection import look
    from dapo.data.prepare.reading import Columns

    found = look(file, samples, seed, Columns(prompt=prompt_column, answer=answer_column))
    if as_json:
        click.echo(json.dumps(found.summary(), ensure_ascii=False, default=str))
        return
    show_tables(inspection_tables(found))
    if found.card is not None:
        show_notes(card_notes(found.card))
    for line in sample_lines(found):
        click.echo(printable(line))


@data.command(context_settings=SETTINGS)
@click.argument("folder", metavar="FOLDER")
@click.argument("model", metavar="MODEL|RUN[@STEP]|EVALUATION")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-o", "--output-dir", required=True, metavar="DIR", help="Folder to write: FOLDER with pass rates.")
@click.option("--overwrite", is_flag=True, help="Replace a prepared folder.")
@RECIPE
@click.option("--k", type=click.IntRange(1), default=16, help="Responses per problem [16].")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), default=1.0, help="[1.0, as in training]")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest response [of the run or recipe].")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the responses [of the run or recipe].")
@click.option("--responses-per-prompt", type=click.IntRange(2), default=16, help="Of training, for the forecast [16].")
@click.option("--endpoint", metavar="URL", help="OpenAI-compatible server that has MODEL: http://host:port/v1.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests at a time [16].")
@click.option("--api-key-env", metavar="NAME", help=f"Environment variable with the server's key [{KEY_VARIABLE}].")
@click.pass_context
def rate(ctx: click.Context, /, folder: str, model: str, words: tuple[str, ...], **given: Any) -> None:
    """Sample each problem of a prepared FOLDER k times and write its pass rate, with its interval.

    \b
    dapo data rate data/train Qwen/Qwen3-0.6B -o data/rated --k 16
    dapo train RECIPE data.source=data/rated data.rating_column=pass_rate data.min_pass_rate=0.05

    The responses are an evaluation in DIR.samples (dapo browse shows them); the same command goes on with one that
    was interrupted. An EVALUATION of FOLDER that is there already is read instead of sampling anew. Where answers
    were made integers, the problems before that are sampled too, and the pass rates compared.
    """
    from dapo import rate as rating
    from dapo.evals.store import EvaluationDirectory

    out = Path(given["output_dir"])
    sets = rating.sets_to_sample(folder)
    if EvaluationDirectory.is_one(Path(model)):
        _nothing_else(ctx, model, words)
        samples = EvaluationDirectory.open(model)
    else:
        from dapo.data.prepare.place import check_place

        check_place(out, given["overwrite"])
        where = f"{given['output_dir'].rstrip('/')}.samples"
        asked = {name: given[name] for name in ("recipe", "k", "temperature", "max_tokens", "seed")}
        server = {name: given[name] for name in ("endpoint", "concurrency", "api_key_env")}
        ctx.invoke(evaluate, model=model, words=words, data=sets, top_p=1.0, output_dir=where, **asked, **server)
        samples = EvaluationDirectory.open(where)
    for line in rating.lines(
        rating.rate(Path(folder), samples, out, size=given["responses_per_prompt"], overwrite=given["overwrite"])
    ):
        click.echo(printable(line))
    click.echo(printable(f"{out}: train.parquet, card.json; data.source={out} data.rating_column=pass_rate"), err=True)


def _nothing_else(ctx: click.Context, model: str, words: tuple[str, ...]) -> None:
    """Raises UserError for options of sampling beside samples that are there."""
    own = ("folder", "model", "words", "output_dir", "overwrite", "responses_per_prompt")
    given = [f"--{name.replace('_', '-')}" for name in ctx.params if name not in own and _was_given(ctx, name)]
    if given or words:
        raise UserError(f"{model} is an evaluation that is there already, so {(*given, *words)[0]} says nothing to it")


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
