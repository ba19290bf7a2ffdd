"""The page docs/alerts.md, made of the table of rules.

python -m dapo.alerts.page docs/alerts.md
"""

from __future__ import annotations

from dapo.alerts.measures import MEASURES
from dapo.alerts.rule import Condition, Rule
from dapo.alerts.rules import RULES
from dapo.generated import main, with_part

BEGIN = "<!-- made by `python -m dapo.alerts.page` from the table of rules: begin -->"
END = "<!-- made by `python -m dapo.alerts.page`: end -->"


def rules_page() -> str:
    """Every alert: when it begins and ends, why there, what it means, what to do."""
    return "\n".join(_section(rule) for rule in RULES)


def page_with_rules(page: str) -> str:
    """The page with the rules between the two markers. Raises ConfigError without them."""
    return with_part(page, BEGIN, END, rules_page())


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


if __name__ == "__main__":
    main(page_with_rules, "docs/alerts.md")
