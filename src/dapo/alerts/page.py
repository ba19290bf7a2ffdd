"""The page docs/alerts.md, made of the table of rules.

python -m dapo.alerts.page docs/alerts.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from dapo.alerts.measures import MEASURES
from dapo.alerts.rule import Condition, Rule
from dapo.alerts.rules import RULES
from dapo.errors import UserError
from dapo.files import write_text

BEGIN = "<!-- made by `python -m dapo.alerts.page` from the table of rules: begin -->"
END = "<!-- made by `python -m dapo.alerts.page`: end -->"


def rules_page() -> str:
    """Every alert: when it begins and ends, why there, what it means, what to do."""
    return "\n".join(_section(rule) for rule in RULES)


def page_with_rules(page: str) -> str:
    """The page with the rules between the two markers. Raises UserError without them."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UserError(f"the page needs the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{rules_page()}\n{END}{tail}"


def _section(rule: Rule) -> str:
    steps = "at once" if rule.steady == 1 else f"once it holds {rule.steady} times in a row"
    where = f"; {rule.where}" if rule.where else ""
    lines = [f"## {rule.alert}", "", f"`{rule.metric}`, {steps}{where}.", ""]
    lines += [_condition(condition, rule) for condition in rule.conditions]
    value, last = "X", "Y"  # what stands there is the run's
    means = _filled(rule.means, value, last)
    return "\n".join([*lines, "", f"Means: {means}.", "", f"Do: {rule.advice}.", ""])


def _condition(condition: Condition, rule: Rule) -> str:
    figure = MEASURES[condition.measure][1].format(window=condition.window, twice=2 * condition.window)
    name = f" of `{condition.metric}`" if condition.metric and condition.metric != rule.metric else ""
    unit = f", as a share of `{condition.unit}`" if condition.unit else ""
    begins, ends = ("at least", "under") if condition.over else ("at most", "over")
    bounds = f"{begins} {condition.bound:g} (ends {ends} {condition.clear:g})"
    return f"- {figure}{name}{unit}: {bounds}; {condition.why}"


def _filled(means: str, value: str, last: str) -> str:
    """The words with letters in place of figures."""
    for field, letter in (("value", value), ("last", last)):
        head, mark, rest = means.partition("{" + field)
        means = head + (letter + rest.partition("}")[2] if mark else rest)
    return means


def write_page(path: Path) -> None:
    """Makes the rules in a page again. Raises UserError."""
    try:
        page = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    write_text(path, page_with_rules(page))


if __name__ == "__main__":
    try:
        write_page(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/alerts.md"))
    except UserError as error:
        sys.exit(f"error: {error.message}")
