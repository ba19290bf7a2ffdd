"""What a finished run shows: before and after, answers side by side, what to do next."""

from __future__ import annotations

import shlex
from typing import Any

from rich.table import Table
from rich.text import Text

from dapo.config.schema import Config
from dapo.printable import one_line, printable
from dapo.run.directory import RunDirectory
from dapo.run.view import View

EXAMPLES = 6
WIDTH = 60


def before_after(run: RunDirectory, config: Config, view: View) -> None:
    """Prints the table and the commands to try next."""
    last, where = config.train.num_steps, shlex.quote(str(run.path))
    both = [_figures_of(run, step) for step in (0, last)]
    if both[0] and both[1]:
        before, after = both
        for name in after:
            if name in before:
                view.console.print(_figures(_title(name, config), before[name], after[name]))
        view.console.print(_answers(run.rollouts(0, "eval"), run.rollouts(last, "eval")))
        if (
            run.read_json("eval/step_000000.json")["settings"]
            != run.read_json(f"eval/step_{last:06d}.json")["settings"]
        ):
            view.say(
                f"note: before was evaluated with other settings than after (dapo compare {where}@0 {where}@{last})"
            )
        view.say(f"pass@k and phrases over training: dapo progress {where}")
    if config.checkpoint.keep_best:
        on = config.checkpoint.best_on or "its set"
        view.say(f"best checkpoint (by {config.checkpoint.best_metric} on {on}): dapo eval {where}@best")
    folder = run.path / "checkpoints" / f"step_{last:06d}" / "model"
    view.say(f"model: {folder} (a plain Hugging Face folder)")
    view.say("next:")
    view.say(f'  dapo sample {where} "{_example_question(run)}"')
    view.say(f"  dapo chat {where}")
    view.say(f"  dapo eval {where} --k 8")
    view.say(f"  dapo train --resume {where} train.num_steps={last + 10}")


def _figures_of(run: RunDirectory, step: int) -> dict[str, Any]:
    """The figures of a step's evaluation by set; none where there is none, or only one of an older dapo."""
    file = run.path / "eval" / f"step_{step:06d}.json"
    found = run.read_json(f"eval/{file.name}") if file.is_file() else {}
    return found.get("sets", {}) if isinstance(found, dict) and "settings" in found else {}


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
    if all(e["accuracy"] is not None for e in both):
        table.add_row("accuracy, avg@k", *(f"{e['accuracy']:.1%}" for e in both))
        table.add_row("95%, other such problems", *(_interval(e, "population, over problem means") for e in both))
        table.add_row("95%, these problems", *(_interval(e, "this set alone, sampling noise") for e in both))
        for name in ("pass", "maj"):
            common = [k for k in after[f"{name}_at"] if k in before[f"{name}_at"]]
            if common:
                k = max(common, key=int)
                table.add_row(f"{name}@{k}", *(f"{e[f'{name}_at'][k]['value']:.1%}" for e in both))
    table.add_row("mean reward", *("-" if e["reward_mean"] is None else f"{e['reward_mean']:.3f}" for e in both))
    for name, key in (("parsed answers", "parsed_fraction"), ("truncated", "truncated_fraction")):
        table.add_row(name, *(f"{e[key]:.1%}" for e in both))
    table.add_row("mean length, tokens", *(f"{e['length_mean_tokens']:.1f}" for e in both))
    table.add_row("problems x samples", *(f"{e['problems']} x {e['k']}" for e in both))
    return table


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
        new = later[(row["set"], row["prompt_id"], row["g"])]
        gold = one_line(row["answer"], WIDTH) if row["answer"] is not None else ""
        table.add_row(*map(Text, (_question(row), gold, _marked(row), _marked(new))))
    return table


def _marked(row: dict[str, Any]) -> str:
    """Whether it is right, where anything is, and how the text begins. Nobody's text is markup here."""
    sign = {True: "✓ ", False: "✗ ", None: ""}[row["correct"]]
    return f"{sign}{printable(' '.join(row['text'].split())[:WIDTH])}"


def _question(row: dict[str, Any]) -> str:
    return printable(" ".join(row["question"].split())[-WIDTH:])


def _example_question(run: RunDirectory) -> str:
    if not (run.path / "eval" / "step_000000.jsonl.zst").is_file():
        return "What is 3 + 4?"
    return printable(str(run.rollouts(0, "eval")[0]["question"])).replace('"', "'")
