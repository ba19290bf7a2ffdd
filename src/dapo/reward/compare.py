r"""Whether a prediction answers a gold: three-valued, so that algebra is asked only where it must be.

`compare` walks two forms. Each step says True, False or None: None means that a pair of expressions
is left which only symbolic algebra can judge. The calling process runs it with `undecided`; a worker
runs the very same function with math-verify in its place.

Policy, where mathematics leaves a choice:
- A gold that is a number written out wants a number written out. `12+13` for 25 would pay for
  repeating the question (`unevaluated="right"` accepts it).
- Nothing is rounded into equality.
- p% answers a gold p/100, and a gold p above 1; a gold p% is answered by p and by p/100.
- A tuple is no set; (a, b) is no [a, b]; a row of answers is unordered, a named one in its order is a tuple.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dapo.reward.forms import (
    Bag,
    Condition,
    Difference,
    Either,
    Equation,
    Expr,
    Form,
    Matrix,
    Number,
    Relation,
    Sequence,
    Union,
    Words,
)
from dapo.reward.names import FUNCTION
from dapo.reward.number import read_number
from dapo.reward.regions import region
from dapo.reward.truth import Truth, all_of, any_of, pairs_off
from dapo.reward.units import DEGREE, PERCENT, agree, bare_letter, conversion

Leaf = Callable[[str, str], Truth]
MAX_ITEMS = 64  # of an unordered comparison
BOOLEAN = {"yes": "true", "no": "false"}


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


def compare(gold: Form, pred: Form, rules: Rules) -> tuple[Truth, str]:
    """(True, False or None, name of the stage that decided)."""
    if isinstance(gold, Either) or isinstance(pred, Either):
        golds = gold.readings if isinstance(gold, Either) else (gold,)
        preds = pred.readings if isinstance(pred, Either) else (pred,)
        return any_of(compare(g, p, rules)[0] for g in golds for p in preds), "number"
    for types, stage, rule in _RULES:
        if isinstance(gold, types) or isinstance(pred, types):
            return rule(gold, pred, rules), stage
    if isinstance(gold, Number):
        return _number(gold, pred, rules)
    assert isinstance(gold, Expr)
    return _expression(gold, pred, rules), "symbolic"


def equal(gold: Form, pred: Form, rules: Rules) -> Truth:
    """compare without the stage."""
    return compare(gold, pred, rules)[0]


def _matched(golds: tuple[Form, ...], preds: tuple[Form, ...], rules: Rules) -> Truth:
    """Whether the items pair off one to one in some order."""
    if len(golds) != len(preds) or len(golds) > MAX_ITEMS:
        return False
    return pairs_off([[equal(gold, pred, rules) for pred in preds] for gold in golds])


# Numbers and expressions


def _number(gold: Number, pred: Form, rules: Rules) -> tuple[Truth, str]:
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


def _expression(gold: Expr, pred: Form, rules: Rules) -> Truth:
    if isinstance(pred, Number):
        if pred.unit == DEGREE and "\\pi" in gold.text:
            return rules.leaf(gold.text, fraction_latex(pred.value / 180) + "\\pi")
        value = pred.value / 100 if pred.unit == PERCENT else pred.value
        unit = None if pred.unit == PERCENT else pred.unit
        return agree(gold.unit, unit) and rules.leaf(gold.text, fraction_latex(value))
    if not isinstance(pred, Expr) or not agree(gold.unit, pred.unit):
        return False
    return rules.leaf(gold.text, pred.text)


# Equations


def _equation(gold: Form, pred: Form, rules: Rules) -> Truth:
    if isinstance(gold, Equation):
        return _gold_equation(gold, pred, rules)
    assert isinstance(pred, Equation)
    if isinstance(gold, Condition) and pred.names == (gold.variable,):
        return equal(gold.region, pred.members[-1], rules)
    if isinstance(gold, (Relation, Condition)):
        return False
    return _chain(gold, pred, rules)


def _chain(gold: Form, pred: Equation, rules: Rules) -> Truth:
    """x = 5, or a chain of true equalities that ends in the gold."""
    lenient = Rules(rules.leaf, "right", rules.convert_units)
    inner = (equal(gold, member, lenient) for member in pred.members[:-1])
    return all_of([equal(gold, pred.members[-1], rules), *inner])


def _gold_equation(gold: Equation, pred: Form, rules: Rules) -> Truth:
    value = gold.members[-1]
    if not isinstance(pred, Equation):
        return equal(value, pred, rules) if gold.names else False
    if squeezed(gold.text) == squeezed(pred.text):
        return True
    if gold.names and pred.names:
        if gold.names[0] == pred.names[0] or _labels(gold.names[0], pred.names[0]):
            return _chain(value, pred, rules)
        renamed = _renamed(gold, pred)
        if renamed is not None:
            return equal(value, renamed, rules)
        if all(isinstance(member, Number) for member in (*gold.members, *pred.members)):
            return False  # k = 3 does not answer n = 3
    return rules.leaf(gold.text, pred.text)


def _labels(gold: str, pred: str) -> bool:
    """Words that label a value need not be the same words."""
    worded = re.compile(r"\\text\{.*\}|[A-Za-z ]{4,}")
    return bool(worded.fullmatch(gold) and worded.fullmatch(pred) and gold.casefold() == pred.casefold())


def _renamed(gold: Equation, pred: Equation) -> Form | None:
    """f(z) = z for f(x) = x: the variable of a function is bound."""
    ours, theirs = FUNCTION.fullmatch(gold.names[0]), FUNCTION.fullmatch(pred.names[0])
    last = pred.members[-1]
    if not ours or not theirs or ours[1] != theirs[1]:
        return None
    if isinstance(last, Number):
        return last
    if not isinstance(last, Expr) or re.search(rf"(?<![A-Za-z\\]){re.escape(ours[2])}(?![A-Za-z])", last.text):
        return None
    swapped = re.sub(rf"(?<!\\)(?<![A-Za-z]){re.escape(theirs[2])}(?![A-Za-z])", lambda _: ours[2], last.text)
    return Expr(swapped, last.unit)


# Regions of the line


def _regions(gold: Form, pred: Form, rules: Rules) -> Truth:
    if isinstance(gold, Condition) and isinstance(pred, Condition) and gold.variable != pred.variable:
        return False
    ours, theirs = region(gold), region(pred)
    if ours is not None and theirs is not None:
        return ours == theirs
    gold = gold.region if isinstance(gold, Condition) else gold
    pred = pred.region if isinstance(pred, Condition) else pred
    if isinstance(gold, Union) or isinstance(pred, Union):
        return _matched(_parts(gold), _parts(pred), rules)
    if isinstance(gold, Difference) and isinstance(pred, Difference):
        return all_of([equal(gold.whole, pred.whole, rules), equal(gold.removed, pred.removed, rules)])
    if isinstance(gold, Difference) or isinstance(pred, Difference):
        return _punctured(gold, pred, rules)
    return equal(gold, pred, rules)


def _parts(form: Form) -> tuple[Form, ...]:
    if isinstance(form, Union):
        return tuple(piece for part in form.parts for piece in _parts(part))
    return (form,)


def _punctured(gold: Form, pred: Form, rules: Rules) -> Truth:
    r"""R \\ {a} against (-oo, a) u (a, oo) with an end that is no exact number."""
    for difference, other, swap in ((gold, pred, False), (pred, gold, True)):
        if not isinstance(difference, Difference) or not isinstance(difference.removed, Bag):
            continue
        whole, points = difference.whole, difference.removed.items
        if len(points) == 1 and isinstance(whole, Sequence) and len(whole.items) == 2:
            left = Sequence(whole.opening, (whole.items[0], points[0]), ")")
            right = Sequence("(", (points[0], whole.items[1]), whole.closing)
            split = Union((left, right))
            return _regions(other, split, rules) if swap else _regions(split, other, rules)
    return False


# Sequences, sets, matrices, words, relations


def _sequence(gold: Form, pred: Form, rules: Rules) -> Truth:
    if isinstance(pred, Sequence) and isinstance(gold, Sequence):
        if ":" in (gold.opening, pred.opening):
            return gold.opening == pred.opening and _ratio(gold, pred, rules)
        vectors = len(gold.items) > 2 and {gold.opening + gold.closing, pred.opening + pred.closing} <= {"()", "[]"}
        if not vectors and (gold.opening, gold.closing) != (pred.opening, pred.closing):
            return False
        return _in_order(gold.items, pred.items, rules)
    named = _named_values(pred) if isinstance(gold, Sequence) else _named_values(gold)
    if named is None:
        ratio = gold if isinstance(gold, Sequence) else pred
        other = pred if isinstance(gold, Sequence) else gold
        return isinstance(ratio, Sequence) and isinstance(other, Number) and _quotient(ratio) == other.value
    if isinstance(gold, Sequence):
        return gold.opening == "(" and _in_order(gold.items, named, rules)
    return isinstance(pred, Sequence) and pred.opening == "(" and _in_order(named, pred.items, rules)


def _in_order(golds: tuple[Form, ...], preds: tuple[Form, ...], rules: Rules) -> Truth:
    if len(golds) != len(preds):
        return False
    return all_of(equal(gold, pred, rules) for gold, pred in zip(golds, preds, strict=True))


def _ratio(gold: Sequence, pred: Sequence, rules: Rules) -> Truth:
    """a:b = c:d when proportional, exactly; otherwise term by term."""
    ours = [item.value for item in gold.items if isinstance(item, Number)]
    theirs = [item.value for item in pred.items if isinstance(item, Number)]
    if len(ours) == len(gold.items) == len(theirs) == len(pred.items) and all(ours) and all(theirs):
        return len({a / b for a, b in zip(ours, theirs, strict=True)}) == 1
    return _in_order(gold.items, pred.items, rules)


def _quotient(form: Sequence) -> Fraction | None:
    values = [item.value for item in form.items if isinstance(item, Number)]
    usable = form.opening == ":" and len(values) == len(form.items) == 2 and values[1]
    return values[0] / values[1] if usable else None


def _named_values(form: Form) -> tuple[Form, ...] | None:
    """The values of x = 7, y = 6 in their order, when every one has its own name."""
    if not isinstance(form, Bag) or form.braces:
        return None
    equations = [item for item in form.items if isinstance(item, Equation) and item.names]
    names = {item.names for item in equations}
    if len(equations) != len(form.items) or len(names) != len(equations):
        return None
    return tuple(item.members[-1] for item in equations)


def _bag(gold: Form, pred: Form, rules: Rules) -> Truth:
    if isinstance(gold, Number) and isinstance(pred, Bag) and pred.decimal is not None and gold.value.denominator > 1:
        return gold.value == pred.decimal
    named = _named_values(gold)
    if named is not None and isinstance(pred, Bag) and not any(isinstance(item, Equation) for item in pred.items):
        return _in_order(named, pred.items, rules)
    ours = gold.items if isinstance(gold, Bag) else (gold,)
    theirs = pred.items if isinstance(pred, Bag) else (pred,)
    if isinstance(gold, Bag) and isinstance(pred, Bag) and (gold.braces or pred.braces):
        ours, theirs = _distinct(ours, rules), _distinct(theirs, rules)
    return _matched(ours, theirs, rules)


def _distinct(items: tuple[Form, ...], rules: Rules) -> tuple[Form, ...]:
    """A set holds each element once."""
    kept: list[Form] = []
    for item in items[: MAX_ITEMS + 1]:
        if not any(equal(other, item, rules) is True for other in kept):
            kept.append(item)
    return tuple(kept)


def _matrix(gold: Form, pred: Form, rules: Rules) -> Truth:
    """Cell by cell; a single column or row also answers, and is answered by, a tuple."""
    if isinstance(gold, Matrix) and isinstance(pred, Matrix):
        if [len(row) for row in gold.rows] != [len(row) for row in pred.rows]:
            return False
        cells = (
            (g, p) for ours, theirs in zip(gold.rows, pred.rows, strict=True) for g, p in zip(ours, theirs, strict=True)
        )
        return all_of(equal(g, p, rules) for g, p in cells)
    if isinstance(gold, Expr) or isinstance(pred, Expr):
        return None if rules.leaf is undecided else rules.leaf(_latex(gold), _latex(pred))
    ours, theirs = _vector(gold), _vector(pred)
    return False if ours is None or theirs is None else _in_order(ours, theirs, rules)


def _vector(form: Form) -> tuple[Form, ...] | None:
    if isinstance(form, Sequence) and form.opening + form.closing in ("()", "[]"):
        return form.items
    if not isinstance(form, Matrix):
        return None
    if len(form.rows) == 1:
        return form.rows[0]
    return tuple(row[0] for row in form.rows) if len(form.rows[0]) == 1 else None


def _latex(form: Form) -> str:
    if isinstance(form, Matrix):
        rows = (" & ".join(_latex(cell) for cell in row) for row in form.rows)
        return "\\begin{pmatrix}" + " \\\\ ".join(rows) + "\\end{pmatrix}"
    return fraction_latex(form.value) if isinstance(form, Number) else getattr(form, "text", "")


def _words(gold: Form, pred: Form, rules: Rules) -> Truth:
    if isinstance(gold, Words) and isinstance(pred, Words):
        return BOOLEAN.get(gold.text, gold.text) == BOOLEAN.get(pred.text, pred.text)
    other = pred if isinstance(gold, Words) else gold
    words = gold.text if isinstance(gold, Words) else pred.text if isinstance(pred, Words) else ""
    return isinstance(other, Expr) and squeezed(other.text).casefold() == squeezed(words)


def _relation(gold: Form, pred: Form, rules: Rules) -> Truth:
    texts = [form.text for form in (gold, pred) if isinstance(form, (Relation, Equation))]
    return rules.leaf(texts[0], texts[1]) if len(texts) == 2 else False


# Which rule decides: the first whose type either side has.
_RULES: tuple[tuple[tuple[type, ...], str, Callable[[Form, Form, Rules], Truth]], ...] = (
    ((Equation,), "equation", _equation),
    ((Relation,), "relation", _relation),
    ((Condition, Union, Difference), "interval", _regions),
    ((Matrix,), "matrix", _matrix),
    ((Sequence,), "sequence", _sequence),
    ((Bag,), "set", _bag),
    ((Words,), "words", _words),
)

__all__ = ["Rules", "Truth", "compare", "equal", "fraction_latex", "squeezed", "undecided"]
