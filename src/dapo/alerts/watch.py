"""The rules over a run's lines: which alerts begin, each told once until it has ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo.alerts.measures import LONGEST, MEASURES, Series, finite
from dapo.alerts.rule import Condition, Rule
from dapo.alerts.rules import RULES
from dapo.config.schema import Config

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that has begun: one line each of what it means and what to do."""

    alert: str
    metric: str
    value: float
    message: str
    advice: str


def alerts(history: Sequence[Line], config: Config, rules: Sequence[Rule] = RULES) -> list[Alert]:
    """The alerts that begin with the last of a run's lines.

    Args:
        history: all lines of metrics.jsonl so far, in order: metric -> number, null where there is none.
        config: of the run.
        rules: what is looked for.
    """
    watch = Watch(config, rules)
    watch.replay(history[:-1])
    return watch.feed(history[-1]) if history else []


@dataclass(slots=True)
class _State:
    """Where a rule stands for a metric: told or not, and for how many values in a row that is to change."""

    told: bool = False
    in_a_row: int = 0


@dataclass
class Watch:
    """The same, fed line by line: what it holds is a function of the lines, and does not grow with their number."""

    config: Config
    rules: Sequence[Rule] = RULES
    _series: dict[str, Series] = field(default_factory=dict)
    _states: dict[tuple[str, str], _State] = field(default_factory=dict)
    _units: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = tuple(rule for rule in self.rules if rule.applies(self.config))
        conditions = [(rule, condition) for rule in self.rules for condition in rule.conditions]
        self._names = re.compile("|".join({_pattern(c.metric or rule.metric) for rule, c in conditions}))
        self._patterns = {rule.alert: re.compile(_pattern(rule.metric)) for rule in self.rules}
        self._units = {condition.unit: _number(self.config, condition.unit) for _, condition in conditions}
        assert all(condition.window <= LONGEST for _, condition in conditions)

    def replay(self, lines: Iterable[Line]) -> None:
        """Goes through lines whose alerts have been told."""
        for line in lines:
            self.feed(line)

    def feed(self, line: Line) -> list[Alert]:
        """The alerts that begin with this line, in the order of the rules."""
        here = [name for name, value in sorted(line.items()) if self._names.fullmatch(name) and finite(value)]
        for name in here:
            self._series.setdefault(name, Series()).add(float(line[name]))
        found = [(rule, name) for rule in self.rules for name in here if self._patterns[rule.alert].fullmatch(name)]
        begun = [(rule, name, self._turn(rule, name)) for rule, name in found]
        return [self._alert(rule, name, value) for rule, name, value in begun if value is not None]

    def _turn(self, rule: Rule, name: str) -> float | None:
        """Counts one more value of a metric; the alert's value where the alert begins with it."""
        figures = [(condition, self._figure(condition, name)) for condition in rule.conditions]
        state = self._states.setdefault((rule.alert, name), _State())
        if state.told:
            turning = any(value is not None and condition.ends(value) for condition, value in figures)
        else:
            turning = all(value is not None and condition.begins(value) for condition, value in figures)
        state.in_a_row = state.in_a_row + 1 if turning else 0
        if state.in_a_row < rule.steady:
            return None
        state.told, state.in_a_row = not state.told, 0
        return figures[0][1] if state.told else None

    def _figure(self, condition: Condition, name: str) -> float | None:
        series = self._series.get(condition.metric or name)
        value = None if series is None else MEASURES[condition.measure][0](series, condition.window)
        if value is not None and condition.unit:
            unit = self._units[condition.unit]
            value = value / unit if unit else None
        return value if finite(value) else None

    def _alert(self, rule: Rule, name: str, value: float) -> Alert:
        message = rule.means.format(value=value, last=self._series[name].recent[-1])
        return Alert(rule.alert, name, value, message, rule.advice)


def _pattern(metric: str) -> str:
    """Of a metric's name: eval/*accuracy is eval/accuracy or eval/SET/accuracy."""
    return re.escape(metric).replace(re.escape("/*"), "/(?:.+/)?")


def _number(config: Config, key: str) -> float | None:
    """The number that a configuration key holds; None where it is off."""
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part) if part else None
    return found if finite(found) else None
