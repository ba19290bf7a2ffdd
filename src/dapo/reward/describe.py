"""An answer's form in words, for `dapo grade --explain`."""

from __future__ import annotations

from dapo.reward.choices import choice
from dapo.reward.clean import MAX_CHARACTERS, clean
from dapo.reward.forms import (
    Bag,
    Condition,
    Difference,
    Equation,
    Expr,
    Form,
    Intersection,
    Matrix,
    Number,
    Sequence,
    Union,
    Words,
)
from dapo.reward.read import read
from dapo.reward.values import fraction_latex


def describe(answer: str) -> str:
    r"""How an answer is read.

    >>> describe(r"\{1, 0.5\}"), describe("x < 3"), describe("5 cm")
    ('set of 1 and \\frac{1}{2}', 'x in (-\\infty, 3)', '5 [cm]')
    """
    text = clean(answer[:MAX_CHARACTERS])
    letter = choice(text)
    return f"choice {letter}" if letter else _form(read(text))


def _form(form: Form) -> str:
    if isinstance(form, (Number, Expr)):
        value = fraction_latex(form.value) if isinstance(form, Number) else form.text
        return f"{value} [{form.unit.key or form.unit.kind}]" if form.unit else value
    if isinstance(form, Words):
        return f"the words {form.text!r}"
    if isinstance(form, Sequence):
        inside = (":" if form.opening == ":" else ", ").join(map(_form, form.items))
        return inside if form.opening == ":" else f"{form.opening}{inside}{form.closing}"
    if isinstance(form, Bag):
        return ("set of " if form.braces else "answers ") + (" and ".join(map(_form, form.items)) or "nothing")
    if isinstance(form, Union):
        return " joined with ".join(map(_form, form.parts))
    if isinstance(form, Intersection):
        return " as far as ".join(map(_form, form.parts))
    if isinstance(form, Difference):
        return f"{_form(form.whole)} without {_form(form.removed)}"
    if isinstance(form, Condition):
        return f"{form.variable} in {_form(form.region)}"
    if isinstance(form, Matrix):
        return "matrix " + "; ".join(", ".join(map(_form, row)) for row in form.rows)
    if isinstance(form, Equation):
        names = " = ".join(form.names)
        return f"{names or 'equation'}: {' = '.join(map(_form, form.members))}"
    return f"relation {form.text}"
