"""What a finished run shows: before and after, answers side by side, what to do next."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from dapo.config.schema import Config
from dapo.run.directory import RunDirectory
from dapo.run.view import View

EXAMPLES = 6
WIDTH = 60


def before_after(run: RunDirectory, config: Config, view: View) -> None:
    """Prints the table and the commands to try next."""
    last = config.train.num_steps
    files = [run.path / "eval" / f"step_{step:06d}.json" for step in (0, last)]
    if all(file.is_file() for file in files):
        before, after = (run.read_json(f"eval/step_{step:06d}.json") for step in (0, last))
        view.console.print(_figures(before, after))
        view.console.print(_answers(run.rollouts(0, "eval"), run.rollouts(last, "eval")))
    folder = run.path / "checkpoints" / f"step_{last:06d}" / "model"
    view.say(f"model: {folder} (a plain Hugging Face folder)")
    view.say("next:")
    view.say(f'  dapo sample {run.path} "{_example_question(run)}"')
    view.say(f"  dapo chat {run.path}")
    view.say(f"  dapo eval {run.path} --k 8")
    view.say(f"  dapo train --resume {run.path} train.num_steps={last + 10}")


def _figures(before: dict[str, Any], after: dict[str, Any]) -> Table:
    table = Table(title="held-out problems, before and after", title_justify="left")
    for name in ("", "before", "after"):
        table.add_column(name, justify="left" if not name else "right")
    if after["accuracy"] is not None:
        table.add_row(f"accuracy, avg@{after['k']}", *(f"{e['accuracy']:.1%}" for e in (before, after)))
        table.add_row("95% interval", *(_interval(e["interval_95"]) for e in (before, after)))
    table.add_row("mean reward", *(f"{e['reward_mean']:.3f}" for e in (before, after)))
    for name, key in (("parsed answers", "parsed_fraction"), ("truncated", "truncated_fraction")):
        table.add_row(name, *(f"{e[key]:.1%}" for e in (before, after)))
    table.add_row("mean length, tokens", *(f"{e['length_mean_tokens']:.1f}" for e in (before, after)))
    table.add_row("problems x samples", *(f"{e['problems']} x {e['k']}" for e in (before, after)))
    return table


def _interval(bounds: list[float | None]) -> str:
    low, high = bounds
    return "-" if low is None or high is None else f"{low:.1%} to {high:.1%}"


def _answers(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Table:
    """The first sample of the first few problems."""
    table = Table(title="answers side by side", title_justify="left")
    for name in ("problem", "gold", "before", "after"):
        table.add_column(name, overflow="fold", max_width=WIDTH)
    later = {(row["prompt_id"], row["g"]): row for row in after}
    shown = [row for row in before if row["g"] == 0 and (row["prompt_id"], 0) in later][:EXAMPLES]
    for row in shown:
        new = later[(row["prompt_id"], 0)]
        table.add_row(_question(row), row["answer"] or "", _marked(row), _marked(new))
    return table


def _marked(row: dict[str, Any]) -> str:
    sign = "✓" if row["verdict"] == "correct" else "✗"
    text = " ".join(row["text"].split())
    return f"{sign} {text[:WIDTH]}".replace("[", "\\[")


def _question(row: dict[str, Any]) -> str:
    return " ".join(row["question"].split())[-WIDTH:].replace("[", "\\[")


def _example_question(run: RunDirectory) -> str:
    if not (run.path / "eval" / "step_000000.jsonl.zst").is_file():
        return "What is 3 + 4?"
    return str(run.rollouts(0, "eval")[0]["question"]).replace('"', "'")
