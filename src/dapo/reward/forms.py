"""The shapes that answers take. `read.read` makes them; `compare.compare` compares them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from dapo.reward.units import Unit


@dataclass(frozen=True, slots=True)
class Number:
    """A number written out, exactly."""

    value: Fraction
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Expr:
    """Anything that only symbolic algebra can judge, in cleaned LaTeX."""

    text: str
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """Text: Yes, even, a name. Folded and without articles."""

    text: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Ordered: a tuple, a vector, an interval, a ratio (both brackets ":")."""

    opening: str
    items: tuple[Form, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Bag:
    """Unordered: a set in braces, or several answers in a row."""

    items: tuple[Form, ...]
    braces: bool = False
    either: bool = False  # joined by "or"
    decimal: Fraction | None = None  # 2,74 read as a European decimal: how a prediction may mean it


@dataclass(frozen=True, slots=True)
class Union:
    """Parts of the real line joined."""

    parts: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    r"""A \\ B."""

    whole: Form
    removed: Form


@dataclass(frozen=True, slots=True)
class Intersection:
    """What all of several regions share: x > 1 and x < 3."""

    parts: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """A variable confined to a region: x < 3, or x in [0, 1)."""

    variable: str
    region: Form


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of cells."""

    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True, slots=True)
class Equation:
    """names = members[0] = members[1] ...: leading sides that only name something, then the rest."""

    names: tuple[str, ...]
    members: tuple[Form, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Relation:
    """An inequality that is no bound on one variable, or another relation."""

    text: str


Form = (
    Number
    | Expr
    | Words
    | Sequence
    | Bag
    | Union
    | Difference
    | Intersection
    | Condition
    | Matrix
    | Equation
    | Relation
)


def texts(form: Form) -> Iterator[str]:
    """The LaTeX of all expressions and relations in a form."""
    if isinstance(form, (Expr, Relation)):
        yield form.text
    for part in inner_forms(form):
        yield from texts(part)


def inner_forms(form: Form) -> tuple[Form, ...]:
    """The forms that a form is made of."""
    if isinstance(form, (Sequence, Bag)):
        return form.items
    if isinstance(form, (Union, Intersection)):
        return form.parts
    if isinstance(form, Difference):
        return (form.whole, form.removed)
    if isinstance(form, Condition):
        return (form.region,)
    if isinstance(form, Matrix):
        return tuple(cell for row in form.rows for cell in row)
    if isinstance(form, Equation):
        return form.members
    return ()


INFINITY = Expr("\\infty")
MINUS_INFINITY = Expr("-\\infty")
REALS = Sequence("(", (MINUS_INFINITY, INFINITY), ")")
EMPTY = Bag((), braces=True)
