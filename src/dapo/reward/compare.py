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
from fractions import Fraction

from dapo.reward.forms import (
    EMPTY,
    Bag,
    Condition,
    Difference,
    Equation,
    Expr,
    Form,
    Intersection,
    Matrix,
    Number,
    Relation,
    Sequence,
    Union,
    Words,
)
from dapo.reward.names import FUNCTION
from dapo.reward.regions import region
from dapo.reward.truth import Truth, all_of, pairs_off
from dapo.reward.values import Rules, expression, fraction_latex, number, squeezed, undecided

MAX_ITEMS = 64  # of an unordered comparison
BOOLEAN = {"yes": "true", "no": "false"}
_NONE = frozenset({"no solution", "no real solution", "none exist", "empty set"})


def compare(gold: Form, pred: Form, rules: Rules) -> tuple[Truth, str]:
    """(True, False or None, name of the stage that decided)."""
    for types, stage, rule in _RULES:
        if isinstance(gold, types) or isinstance(pred, types):
            return rule(gold, pred, rules), stage
    if isinstance(gold, Number):
        return number(gold, pred, rules)
    assert isinstance(gold, Expr)
    return expression(gold, pred, rules), "symbolic"


def equal(gold: Form, pred: Form, rules: Rules) -> Truth:
    """compare without the stage."""
    return compare(gold, pred, rules)[0]


def _matched(golds: tuple[Form, ...], preds: tuple[Form, ...], rules: Rules) -> Truth:
    """Whether the items pair off one to one in some order."""
    if len(golds) != len(preds) or len(golds) > MAX_ITEMS:
        return False
    return pairs_off([[equal(gold, pred, rules) for pred in preds] for gold in golds])


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
    if pred.names and pred.names[0].startswith("(") and not _in_alphabet(pred.names[0].strip("()").split(",")):
        return isinstance(gold, Equation)
    lenient = Rules(rules.leaf, "right", rules.convert_units)
    inner = (equal(gold, member, lenient) for member in pred.members[:-1])
    return all_of([equal(gold, pred.members[-1], rules), *inner])


def _gold_equation(gold: Equation, pred: Form, rules: Rules) -> Truth:
    value = gold.members[-1]
    if len(gold.members) > 1 and gold.names and any(_has_letters(member) for member in gold.members):
        same = isinstance(pred, Equation) and pred.names == gold.names
        return _in_order(gold.members, pred.members, rules) if same and isinstance(pred, Equation) else False
    if not isinstance(pred, Equation):
        return equal(value, pred, rules) if gold.names else False
    if squeezed(gold.text) == squeezed(pred.text):
        return True
    if gold.names and pred.names:
        if gold.names[0] != pred.names[0] and any(name[0].startswith("(") for name in (gold.names, pred.names)):
            return False
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
    if any(isinstance(form, Condition) and _exact_ends(form.region) and region(form) is None for form in (gold, pred)):
        return False  # 3 < x < 2
    gold = gold.region if isinstance(gold, Condition) else gold
    pred = pred.region if isinstance(pred, Condition) else pred
    if isinstance(gold, Union) or isinstance(pred, Union):
        return _matched(_parts(gold), _parts(pred), rules)
    if isinstance(gold, Intersection) and isinstance(pred, Intersection):
        return _matched(gold.parts, pred.parts, rules)
    if isinstance(gold, Intersection) or isinstance(pred, Intersection):
        return False
    if isinstance(gold, Difference) and isinstance(pred, Difference):
        return all_of([equal(gold.whole, pred.whole, rules), equal(gold.removed, pred.removed, rules)])
    if isinstance(gold, Difference) or isinstance(pred, Difference):
        return _punctured(gold, pred, rules)
    return equal(gold, pred, rules)


def _exact_ends(form: Form) -> bool:
    return isinstance(form, Sequence) and all(isinstance(item, Number) for item in form.items)


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
        if ":" in (gold.closing, pred.closing):
            both = gold.closing == pred.closing
            return both and (
                _in_order(gold.items, pred.items, rules)
                if "at" in (gold.opening, pred.opening)
                else _ratio(gold, pred, rules)
            )
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
    """a:b = c:d when proportional, exactly; other terms by cross-multiplication."""
    ours = [item.value for item in gold.items if isinstance(item, Number)]
    theirs = [item.value for item in pred.items if isinstance(item, Number)]
    if len(ours) == len(gold.items) == len(theirs) == len(pred.items) and all(ours) and all(theirs):
        return len({a / b for a, b in zip(ours, theirs, strict=True)}) == 1
    texts = [_latex(item) for item in (*gold.items, *pred.items) if isinstance(item, (Number, Expr))]
    if len(gold.items) == len(pred.items) == 2 and len(texts) == 4:
        return rules.leaf(f"({texts[0]}) \\cdot ({texts[3]})", f"({texts[1]}) \\cdot ({texts[2]})")
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
    if not _in_alphabet([item.names[0] for item in equations]):
        return None  # y = 7, x = 6 is not the pair (7, 6)
    return tuple(item.members[-1] for item in equations)


def _in_alphabet(names: list[str]) -> bool:
    """Whether short names stand in the order in which a pair lists their values; longer ones may stand in any."""
    short = all(len(name.replace("_", "").lstrip("\\")) <= 2 or name.startswith("\\") for name in names)
    return not short or names == sorted(names, key=str.swapcase)


def _has_letters(form: Form) -> bool:
    return isinstance(form, Expr) and re.search(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", form.text) is not None


def _bag(gold: Form, pred: Form, rules: Rules) -> Truth:
    if isinstance(gold, Number) and isinstance(pred, Bag) and pred.decimal is not None and gold.value.denominator > 1:
        return gold.value == pred.decimal
    if (
        isinstance(gold, Bag)
        and isinstance(pred, Bag)
        and gold.either != pred.either
        and _labelled(gold)
        and _labelled(pred)
    ):
        return False  # x = 1 and y = 2 is not x = 1 or y = 2
    if isinstance(pred, Bag) and not isinstance(gold, Bag) and not pred.braces and 1 < len(pred.items) <= MAX_ITEMS:
        return all_of(equal(gold, item, rules) for item in pred.items)  # one value in several spellings
    named = _named_values(gold)
    if named is not None and isinstance(pred, Bag) and not any(isinstance(item, Equation) for item in pred.items):
        return _in_order(named, pred.items, rules)
    if any(_has_letters(form) for form in (gold, pred)):
        return False  # {x} is no x: it may be a fractional part
    ours = gold.items if isinstance(gold, Bag) else (gold,)
    theirs = pred.items if isinstance(pred, Bag) else (pred,)
    if isinstance(gold, Bag) and isinstance(pred, Bag) and (gold.braces or pred.braces):
        ours, theirs = _distinct(ours, rules), _distinct(theirs, rules)
    return _matched(ours, theirs, rules)


def _labelled(form: Bag) -> bool:
    """Whether its items speak of several names."""
    names = {
        item.names[:1] if isinstance(item, Equation) else item.variable
        for item in form.items
        if isinstance(item, (Equation, Condition))
    }
    return len(names) > 1


def _distinct(items: tuple[Form, ...], rules: Rules) -> tuple[Form, ...]:
    """A set holds each element once."""
    if len(items) > MAX_ITEMS or not all(isinstance(item, (Number, Expr)) for item in items):
        return items
    kept: list[Form] = []
    for item in items:
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
    if EMPTY in (gold, pred):
        return any(isinstance(form, Words) and form.text in _NONE for form in (gold, pred))
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
    ((Condition, Union, Difference, Intersection), "interval", _regions),
    ((Matrix,), "matrix", _matrix),
    ((Words,), "words", _words),
    ((Sequence,), "sequence", _sequence),
    ((Bag,), "set", _bag),
)
