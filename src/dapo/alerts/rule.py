"""What an alert is made of: figures against bounds, and words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dapo.config.schema import Config

STEADY = 3  # values in a row before an alert begins, and before it ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One figure of one metric against a bound."""

    measure: str
    """A name in MEASURES."""
    window: int
    """Values that it is over."""
    bound: float
    """Past this the alert begins."""
    clear: float
    """Back past this it ends. On the other side of the bound than the alert, so that noise can't ring it again."""
    over: bool = True
    """Whether past means over the bound (False: under)."""
    metric: str = ""
    """Of which metric; "" for the rule's own."""
    unit: str = ""
    """A configuration key: the figure is divided by its value; where that is off, the rule does not apply."""
    why: str
    """Why the bound is where it is."""

    def begins(self, value: float) -> bool:
        """Whether a figure lies past the bound (or at it)."""
        return value >= self.bound if self.over else value <= self.bound

    def ends(self, value: float) -> bool:
        """Whether a figure lies back past `clear`."""
        return value < self.clear if self.over else value > self.clear


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An alert: it begins when all conditions hold, and ends when one of them has ended."""

    alert: str
    metric: str
    """A metric's name, whose steps it is looked at; a * stands for the name of an evaluation set, or for nothing."""
    conditions: tuple[Condition, ...]
    """The first one's figure is the alert's value."""
    steady: int = STEADY
    """So many values in a row before it begins, and before it ends."""
    means: str
    """What it means; {value} is the first condition's figure, {last} the metric's newest value."""
    advice: str
    applies: Callable[[Config], bool] = lambda config: True
    where: str = ""
    """`applies` in words; "" for everywhere."""
