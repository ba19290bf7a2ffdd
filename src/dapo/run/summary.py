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
        before, after = (run.read_json(f"eval/step_{step:06d}.json")["sets"] for step in (0, last))
        for name in after:
            if name in before:
                view.console.print(_figures(_title(name, config), before[name], after[name]))
        view.console.print(_answers(run.rollouts(0, "eval"), run.rollouts(last, "eval")))
        view.say(f"pass@k and phrases over training: dapo progress {run.path}")
    if config.checkpoint.keep_best:
        on = config.checkpoint.best_on or "its set"
        view.say(f"best checkpoint (by {config.checkpoint.best_metric} on {on}): dapo eval {run.path}@best")
    folder = run.path / "checkpoints" / f"step_{last:06d}" / "model"
    view.say(f"model: {folder} (a plain Hugging Face folder)")
    view.say("next:")
    view.say(f'  dapo sample {run.path} "{_example_question(run)}"')
    view.say(f"  dapo chat {run.path}")
    view.say(f"  dapo eval {run.path} --k 8")
    view.say(f"  dapo train --resume {run.path} train.num_steps={last + 10}")


def _title(name: str, config: Config) -> str:
    what = "held-out problems" if name == "holdout" else name
    if config.checkpoint.keep_best and config.checkpoint.best_on in (None, name):
        what += " (validation: it picks the best checkpoint)"
    return f"{what}, before and after"


def _figures(title: str, before: dict[str, Any], after: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("", "before", "after"):
        table.add_column(name, justify="left" if not name else "right")
    both = (before, after)
    if after["accuracy"] is not None:
        table.add_row(f"accuracy, avg@{after['k']}", *(f"{e['accuracy']:.1%}" for e in both))
        table.add_row("95%, other such problems", *(_interval(e, "population, over problem means") for e in both))
        table.add_row("95%, these problems", *(_interval(e, "this set alone, sampling noise") for e in both))
        for name in ("pass", "maj"):
            if after[f"{name}_at"] and before[f"{name}_at"]:
                table.add_row(f"{name}@{after['k']}", *(f"{_last(e[f'{name}_at']):.1%}" for e in both))
    table.add_row("mean reward", *(f"{e['reward_mean']:.3f}" for e in both))
    for name, key in (("parsed answers", "parsed_fraction"), ("truncated", "truncated_fraction")):
        table.add_row(name, *(f"{e[key]:.1%}" for e in both))
    table.add_row("mean length, tokens", *(f"{e['length_mean_tokens']:.1f}" for e in both))
    table.add_row("problems x samples", *(f"{e['problems']} x {e['k']}" for e in both))
    return table


def _last(figures: dict[str, dict[str, float]]) -> float:
    """The figure at the largest k."""
    return figures[max(figures, key=int)]["value"]


def _interval(figures: dict[str, Any], name: str) -> str:
    low, high = figures["intervals_95"][name]
    return "-" if low is None or high is None else f"{low:.1%} to {high:.1%}"


def _answers(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Table:
    """The first sample of the first few problems."""
    table = Table(title="answers side by side", title_justify="left")
    for name in ("problem", "gold", "before", "after"):
        table.add_column(name, overflow="fold", max_width=WIDTH)
    later = {(row["set"], row["prompt_id"], row["g"]): row for row in after}
    shown = [row for row in before if row["g"] == 0 and (row["set"], row["prompt_id"], 0) in later][:EXAMPLES]
    for row in shown:
        new = later[(row["set"], row["prompt_id"], 0)]
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
