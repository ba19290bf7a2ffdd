r"""Numbers and expressions compared: values exactly, with their units, percent and degrees."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dapo.reward.forms import Expr, Form, Number
from dapo.reward.number import read_number
from dapo.reward.truth import Truth, any_of
from dapo.reward.units import DEGREE, PERCENT, agree, bare_letter, conversion

Leaf = Callable[[str, str], Truth]  # whether two expressions in cleaned LaTeX are equal
_PARAMETER = re.compile(r"(?<![A-Za-z\\])[kmn](?![A-Za-z])")


def undecided(gold: str, pred: str) -> Truth:
    """The leaf of the calling process: identical spelling is equality, the rest is not known."""
    return True if squeezed(gold) == squeezed(pred) else None


def squeezed(text: str) -> str:
    """Without blanks and without braces around single characters."""
    return re.sub(r"(?<=[_^])\{(\w)\}", r"\1", re.sub(r"(?<![A-Za-z])\s+|\s+(?![A-Za-z])", "", text))


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration decides, and the judge of pairs of expressions."""

    leaf: Leaf = undecided
    unevaluated: Literal["wrong", "right"] = "wrong"
    convert_units: bool = False


def number(gold: Number, pred: Form, rules: Rules) -> tuple[Truth, str]:
    """(whether a prediction answers a gold that is a number, the stage that decided)."""
    if isinstance(pred, Number):
        return _numbers(gold, pred, rules)
    if not isinstance(pred, Expr):
        return False, "shape"
    if gold.unit == DEGREE and "\\pi" in pred.text and pred.unit is None:
        return rules.leaf(fraction_latex(gold.value / 180) + "\\pi", pred.text), "symbolic"
    if gold.unit is not None and (value := bare_letter(pred.text, gold.unit)) is not None:
        return read_number(value) == gold.value, "unit"
    if not agree(gold.unit, pred.unit):
        return False, "unit"
    if rules.unevaluated == "wrong":
        return False, "unevaluated"
    return rules.leaf(fraction_latex(gold.value), pred.text), "symbolic"


def _numbers(gold: Number, pred: Number, rules: Rules) -> tuple[Truth, str]:
    ours, theirs = gold.unit, pred.unit
    if PERCENT in (ours, theirs) and ours != theirs:
        return _percent(gold, pred), "percent"
    if agree(ours, theirs):
        return gold.value == pred.value, "number" if ours is None and theirs is None else "unit"
    if rules.convert_units and ours and theirs:
        factor = conversion(ours, theirs)
        return factor is not None and gold.value == pred.value * factor, "unit"
    return False, "unit"


def _percent(gold: Number, pred: Number) -> bool:
    """One of the two carries a percent sign, the other none (or another unit)."""
    if gold.unit == PERCENT:
        return pred.unit is None and pred.value in (gold.value, gold.value / 100)
    literal = pred.value / 100 == gold.value
    return gold.unit is None and (literal or (abs(gold.value) > 1 and pred.value == gold.value))


def fraction_latex(value: Fraction) -> str:
    """Exact LaTeX of a rational."""
    sign = "-" if value < 0 else ""
    top, bottom = abs(value.numerator), value.denominator
    if max(top.bit_length(), bottom.bit_length()) > 13_000:  # Python prints no more than 4300 digits
        return f"{sign}\\text{{a long number}}"
    return f"{sign}{top}" if bottom == 1 else f"{sign}\\frac{{{top}}}{{{bottom}}}"


def expression(gold: Expr, pred: Form, rules: Rules) -> Truth:
    """Whether a prediction answers a gold that is an expression."""
    if isinstance(pred, Number):
        if pred.unit == DEGREE and "\\pi" in gold.text:
            return rules.leaf(gold.text, fraction_latex(pred.value / 180) + "\\pi")
        value = pred.value / 100 if pred.unit == PERCENT else pred.value
        unit = None if pred.unit == PERCENT else pred.unit
        if unit is not None and (measure := bare_letter(gold.text, unit)) is not None:
            return read_number(measure) == pred.value
        return agree(gold.unit, unit) and rules.leaf(gold.text, fraction_latex(value))
    if not isinstance(pred, Expr):
        return False
    if PERCENT in (gold.unit, pred.unit) and gold.unit != pred.unit:
        hundredth = f"\\frac{{{(gold if gold.unit == PERCENT else pred).text}}}{{100}}"
        if gold.unit == PERCENT:
            return any_of([rules.leaf(gold.text, pred.text), rules.leaf(hundredth, pred.text)])
        return rules.leaf(gold.text, hundredth)
    if pred.unit is not None and pred.unit.kind == "modulus" and gold.unit != pred.unit:
        return False  # 2^n is not 2^n modulo 7
    return agree(gold.unit, pred.unit) and rules.leaf(gold.text, _same_parameter(gold.text, pred.text))


def _same_parameter(gold: str, pred: str) -> str:
    r"""A family over whole numbers may name its parameter as it likes: n\pi for k\pi."""
    ours, theirs = (set(_PARAMETER.findall(text)) for text in (gold, pred))
    if "\\pi" not in gold or "\\pi" not in pred or len(ours) != 1 or len(theirs) != 1 or ours == theirs:
        return pred
    return re.sub(rf"(?<![A-Za-z\\]){theirs.pop()}(?![A-Za-z])", ours.pop(), pred)
