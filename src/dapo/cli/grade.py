"""dapo grade: one answer, or a file of them. Loads no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dapo.cli.words import SETTINGS
from dapo.config.schema import RewardConfig
from dapo.errors import UngradableGold, UserError

if TYPE_CHECKING:
    from dapo.reward.grader import Grader
    from dapo.reward.rows import Graded

COLUMNS = (
    ("suite", "suite"), ("n", "n"), ("agreement", "agree"), ("false_positives", "false +"),
    ("false_negatives", "false -"), ("unparsed", "unparsed"), ("timeouts", "timeouts"), ("errors", "errors"),
    ("median_ms", "median ms"), ("p99_ms", "p99 ms"),
)  # fmt: skip


@click.command(context_settings=SETTINGS)  # "-5" is an answer, not an option
@click.argument("words", nargs=-1, required=True, metavar="TEXT GOLD | FILE.jsonl [reward.KEY=VALUE]...")
@click.option("--extract", metavar="POLICIES", help="Where the answer is looked for, in order, with commas between.")
@click.option("--explain", is_flag=True, help="Show what was extracted and read, and what the paper's scorer says.")
@click.option("-o", "--output", metavar="OUT.jsonl", help="Of a file: write a verdict, stage and seconds per row.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def grade(words: tuple[str, ...], extract: str | None, explain: bool, output: str | None, as_json: bool) -> None:
    """Grade the response TEXT against the answer GOLD, or every row of a file, as training does.

    \b
    A row holds  gold (or answer), and pred (a bare answer) or completion (a text);
    optionally   expected (true or false), id, suite,
                 kind: completion or marked_text when pred is a text.

    The answer is looked for in "Answer: ..." lines, \\boxed{}, <answer> tags, "the answer is ...", and
    the last formula or number, in this order; --extract answer_line,boxed is what training does by default.
    Settings: reward.unevaluated=right, reward.convert_units=true, reward.symbolic_limit_s=5, ...

    Exit code 0 whatever the verdicts; 2 when GOLD itself can't be graded.
    """
    settings = [word for word in words if word.startswith("reward.") and "=" in word]
    rest = [word for word in words if word not in settings]
    if unknown := next((word for word in rest if word.startswith("--") and word[2:3].isalpha()), None):
        raise UserError(f"{unknown}: no such option; dapo grade --help lists them")
    config = _config(settings, extract)
    if len(rest) == 2:
        _one(rest[0], rest[1], config, explain, as_json)
    elif len(rest) == 1:
        _file(Path(rest[0]), config, output, as_json)
    else:
        raise UserError("dapo grade takes TEXT GOLD, or one FILE.jsonl; put quotes around a text with blanks")


def _config(settings: list[str], extract: str | None) -> RewardConfig:
    from dapo.library.grade import policy_of

    return policy_of({"reward.extract": extract.split(",")} if extract else {}, *settings)


def _one(text: str, gold: str, config: RewardConfig, explain: bool, as_json: bool) -> None:
    from dapo.reward.compat import VerlMathDapo
    from dapo.reward.judges import make_grader

    grader = make_grader(config)
    compat = VerlMathDapo()
    scorer = compat if config.compat != "off" else grader
    if reason := scorer.check_gold(gold):
        raise UngradableGold(f"GOLD {gold!r} can't be graded: {reason}")
    score = scorer.score(text, gold)
    result: dict[str, Any] = {
        "verdict": score.verdict.value,
        "reward": score.reward,
        "extracted": score.extracted,
        "stage": score.stage,
    }
    if explain:
        result |= _explanation(text, gold, score.extracted, compat)
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
        return
    click.echo(f"{result['verdict']}  extracted: {_shown(result['extracted'])}  by: {result['stage']}")
    if explain:
        for key in ("gold read as", "answer read as", "verl-math-dapo"):
            click.echo(f"{key + ':':16s}{result[key]}")


def _explanation(text: str, gold: str, extracted: str | None, compat: Any) -> dict[str, Any]:
    from dapo.reward.describe import describe

    other = compat.score(text, gold)
    return {
        "gold read as": describe(gold),
        "answer read as": describe(extracted) if extracted else "nothing",
        "verl-math-dapo": f"{other.verdict.value}  extracted: {_shown(other.extracted)}",
    }


def _shown(text: str | None) -> str:
    """Fit for a terminal whatever the response holds."""
    return "nothing" if text is None else text.encode("utf-8", "backslashreplace").decode()


def _file(path: Path, config: RewardConfig, output: str | None, as_json: bool) -> None:
    from dapo.files import write_text
    from dapo.reward.judges import make_grader
    from dapo.reward.pool import default_size
    from dapo.reward.rows import read_rows, table

    if config.compat != "off":
        raise UserError("reward.compat is for TEXT GOLD; a file is graded by the grader itself")
    rows = read_rows(path)
    if output and not Path(output).absolute().parent.is_dir():
        raise UserError(f"-o {output}: there is no folder {Path(output).parent}; make it first")
    graded = _with_progress(make_grader(config), rows, config.symbolic_workers or default_size())
    if output:
        lines = (json.dumps(one.as_row(), ensure_ascii=True) for one in graded)
        try:
            write_text(Path(output), "".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise UserError(f"-o {output}: can't be written ({error.strerror})") from None
    lines_out = table(graded)
    click.echo(json.dumps(lines_out) if as_json else _table(lines_out))


def _with_progress(grader: Grader, rows: list[dict[str, Any]], threads: int) -> list[Graded]:
    from rich.console import Console
    from rich.progress import Progress

    from dapo.reward.rows import grade_rows

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("grading", total=len(rows))
        return grade_rows(grader, rows, threads, lambda: progress.advance(task))


def _table(lines: list[dict[str, Any]]) -> str:
    cells = [[title for _, title in COLUMNS]] + [[_cell(line[key]) for key, _ in COLUMNS] for line in lines]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    padded = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *full[1:]]) for row, full in zip(cells, padded, strict=True))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
