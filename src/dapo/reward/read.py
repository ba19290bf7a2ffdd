r"""A cleaned answer read into a form (dapo.reward.forms): lists, relations, sets, brackets, numbers.

Separators bind in this order, loosest first: and/or/;/, then = < \in, then \cup, then brackets.
What no rule knows stays an Expr, word for word.
"""

from __future__ import annotations

import math
import re
from itertools import product

from dapo.reward.clean import MAX_CHARACTERS, clean, trim
from dapo.reward.forms import (
    EMPTY,
    INFINITY,
    MINUS_INFINITY,
    REALS,
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
    inner_forms,
    texts,
)
from dapo.reward.guard import has_prose
from dapo.reward.names import denies, is_name, name_key
from dapo.reward.number import read_number
from dapo.reward.prepare import AND, OR, prepared, restored
from dapo.reward.split import balanced, enclosed, split_top
from dapo.reward.units import DEGREE, multiplied, split_unit

MAX_DEPTH = 12
MAX_READINGS = 64  # of several \\pm
MAX_WORDS = 3  # of an answer in words: more is prose, which nobody types again
_LABEL = re.compile(
    r"^(?:\\text\{([^{}]*[A-Za-z][^{}]*)\}\s*:|\\text\{([^{}]*[A-Za-z]{2}[^{}]*):\s*\}"
    r"|([A-Za-z][A-Za-z ]{2,30}):)\s*(.+)$",
    re.DOTALL,
)
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", re.DOTALL)
_REAL_LINE = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\R|\\text\{\s*(?:all )?real(?:s| numbers)\s*\}|all real numbers")
_ARTICLES = re.compile(r"\b(?:the|a|an)\b")
_FUNCTION_WORDS = frozenset("sin cos tan cot sec csc log ln exp max min gcd lcm mod det arg deg dim ker".split())  # noqa: SIM905
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")
_RELATIONS = ("=", "<", ">", "\\le", "\\ge", "\\ne", "\\in", "\\approx", "\\equiv", "\\notin", "\\subset", "\\sim")
_MIRROR = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}


def read(text: str, depth: int = 0) -> Form:
    """The form of a cleaned answer. Never raises."""
    text = trim(text)
    if depth == 0:
        text = prepared(text)
    if depth > MAX_DEPTH or not balanced(text):
        return Expr(restored(text))
    for rule in (_listed, _related, _united, _bracketed, _matrix):
        form = rule(text, depth)
        if form is not None:
            return form
    return _leaf(restored(text))


def is_prose(answer: str) -> bool:
    r"""Whether a bare answer is a sentence rather than an answer.

    >>> is_prose("5 cm"), is_prose("even"), is_prose("it could be 5")
    (False, False, True)
    """
    form = read(clean(answer[:MAX_CHARACTERS]))
    return _long(form) or any(has_prose(text) for text in texts(form))


def _long(form: Form) -> bool:
    """Whether it holds more words than an answer in words has."""
    if isinstance(form, Words):
        return len(form.text.split()) > MAX_WORDS
    return any(_long(part) for part in inner_forms(form))


def _listed(text: str, depth: int) -> Form | None:
    """Several answers side by side."""
    pieces = [(before, piece) for before, piece in split_top(text, [",", ";", AND, OR]) if trim(piece)]
    if not pieces:
        return None
    if len(pieces) == 1:
        return _expanded(text, depth) if pieces[0][1] == text else read(pieces[0][1], depth + 1)
    separators = {before for before, _ in pieces[1:]}
    number = _measured(text) if separators == {","} else None
    if number is not None:  # 12,345 or 0,125 or $1,250.00
        return number
    grouped = _grouped(text, depth)
    if grouped is not None:
        return grouped
    items = tuple(read(piece, depth + 1) for _, piece in pieces)
    if any(isinstance(item, Condition) for item in items):
        return _joined(items, OR in separators)
    either = OR in separators
    european = re.fullmatch(r"(-?\d+),(\d+)", text)
    decimal = read_number(f"{european[1]}.{european[2]}") if european else None
    return Bag(_flattened(items), decimal=decimal, either=either)


def _flattened(items: tuple[Form, ...]) -> tuple[Form, ...]:
    flat: list[Form] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Bag) and not item.braces else [item])
    return tuple(flat)


def _grouped(text: str, depth: int) -> Form | None:
    """p=5, q=2; p=7, q=2: several solutions, each of several named values."""
    for separator in (";", AND, OR):
        groups = [part for _, part in split_top(text, [separator]) if trim(part)]
        if len(groups) < 2:
            continue
        inner = [[read(p, depth + 1) for _, p in split_top(group, [","]) if trim(p)] for group in groups]
        sizes = {len(items) for items in inner}
        named = all(isinstance(item, Equation) and item.names for items in inner for item in items)
        if len(sizes) == 1 and sizes != {1} and (named or separator == ";"):
            values = [tuple(i.members[-1] if isinstance(i, Equation) else i for i in items) for items in inner]
            return Bag(tuple(Sequence("(", items, ")") for items in values))
    return None


def _joined(items: tuple[Form, ...], either: bool) -> Form:
    """Conditions on one variable: or joins their regions; and, or a comma, leaves what they share."""
    variables = {item.variable for item in items if isinstance(item, Condition)}
    variables |= {item.names[0] for item in items if isinstance(item, Equation) and item.names}
    if len(variables) != 1 or not all(isinstance(item, (Condition, Equation)) for item in items):
        return Bag(items, either=either)
    regions = tuple(
        item.region if isinstance(item, Condition) else Bag((item.members[-1],), braces=True)
        for item in items
        if isinstance(item, (Condition, Equation))
    )
    return Condition(variables.pop(), Union(regions) if either else Intersection(regions))


def _expanded(text: str, depth: int) -> Form | None:
    r"""Both readings of one \pm, or of one in each coordinate of a tuple."""
    if not _PLUS_MINUS.search(text) or depth > MAX_DEPTH - 2:
        return None
    wrapped = enclosed(text)
    if wrapped and wrapped[0] in ("(", "["):
        parts = [part for _, part in split_top(wrapped[1], [","])]
        if len(parts) < 2 or any(len(_PLUS_MINUS.findall(part)) > 1 for part in parts):
            return None
        readings = [_signs(part) for part in parts]
        if len(parts) > MAX_DEPTH or math.prod(map(len, readings)) > MAX_READINGS:
            return None
        tuples = [wrapped[0] + ",".join(choice) + wrapped[2] for choice in product(*readings)]
        return Bag(tuple(read(one, depth + 1) for one in tuples))
    if wrapped or len(_PLUS_MINUS.findall(text)) != 1 or any(op in text for op in ("<", ">", "\\in")):
        return None
    return Bag(tuple(read(one, depth + 1) for one in _signs(text)))


def _signs(text: str) -> list[str]:
    if not _PLUS_MINUS.search(text):
        return [text]
    head, tail = _PLUS_MINUS.split(text, maxsplit=1)
    if "\\mp" in tail or "\\mp" in head:
        return [f"{head}+{tail}".replace("\\mp", "-"), f"{head}-{tail}".replace("\\mp", "+")]
    if not head.strip() or head.rstrip()[-1] in "(=[{,":
        return [head + tail, head + "-" + tail]
    return [head + "+" + tail, head + "-" + tail]


def _related(text: str, depth: int) -> Form | None:
    """Equations, inequalities, membership."""
    match = _LABEL.match(text)
    if match and not denies(label := match[1] or match[2] or match[3]):
        return Equation((name_key(label),), (read(match[4], depth + 1),), restored(text))
    parts = split_top(text, _RELATIONS)
    if len(parts) < 2:
        return None
    operators = [before for before, _ in parts[1:]]
    sides = [part.strip() for _, part in parts]
    if not all(sides):
        return Relation(restored(text))
    if set(operators) <= {"=", "\\approx", "\\equiv"}:
        return _equation(sides, operators, text, depth)
    if operators == ["\\in"] and (is_name(sides[0]) or enclosed(sides[0])):
        return Condition(name_key(sides[0]), read(sides[1], depth + 1))
    return _bound(sides, operators, depth) or Relation(restored(text))


def _equation(sides: list[str], operators: list[str], text: str, depth: int) -> Form:
    names: list[str] = []
    sides_named: list[str] = []
    modular = operators == ["\\equiv"] and "mod" in sides[-1]
    while len(sides) > 1 and is_name(sides[0]) and (operators[0] != "\\equiv" or modular):
        sides_named.append(sides[0])
        names.append(name_key(sides.pop(0)))
        operators = operators[1:] if len(sides) > 1 else operators
    kept = [sides[0]]
    for operator, side in zip(operators[-(len(sides) - 1) :] if len(sides) > 1 else [], sides[1:], strict=False):
        if operator == "\\approx" and _near(kept[-1], side):
            continue  # the exact value stands before it
        kept.append(side)
    if len(names) > 1 and re.search(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", kept[-1]):
        names, kept = [], [*sides_named, *kept]  # a = b = c names nothing
    members = tuple(read(side, depth + 1) for side in kept)
    if not names and len(members) == 1:
        return members[0]
    return Equation(tuple(names), members, restored(text))


def _near(exact: str, rounded: str) -> bool:
    """Whether a rounded value may stand for the exact one; what can't be told may."""
    left, right = read_number(exact), read_number(rounded)
    return left is None or right is None or abs(left - right) <= abs(left) / 20


def _bound(sides: list[str], operators: list[str], depth: int) -> Form | None:
    """a < x <= b, x < 3, 3 > x, |x| < 2, x != 1."""
    place = next((i for i, side in enumerate(sides) if is_name(side) or _absolute(side)), None)
    if place is None or len(sides) > 3 or (len(sides) == 3 and place != 1):
        return None
    if len(sides) == 3 and not _same_way(operators):
        return None
    low: tuple[Form, bool] = (MINUS_INFINITY, False)
    high: tuple[Form, bool] = (INFINITY, False)
    for index, operator in enumerate(operators):
        end = read(sides[index] if index < place else sides[index + 1], depth + 1)
        if not isinstance(end, (Number, Expr)):
            return None
        if operator == "\\ne":
            return Condition(name_key(sides[place]), Difference(REALS, Bag((end,), braces=True)))
        if operator not in _MIRROR:
            return None
        towards = _MIRROR[operator] if index < place else operator  # as if the variable stood on the left
        closed = operator in ("\\le", "\\ge")
        low, high = (low, (end, closed)) if towards in ("<", "\\le") else ((end, closed), high)
    inner = _absolute(sides[place])
    region = _interval(low, high)
    return Condition(name_key(inner), _unfolded(low, high)) if inner else Condition(name_key(sides[place]), region)


def _same_way(operators: list[str]) -> bool:
    return len({op in ("<", "\\le") for op in operators}) == 1 and all(op in _MIRROR for op in operators)


def _absolute(side: str) -> str | None:
    inner = side.strip()
    return inner[1:-1].strip() if len(inner) > 2 and inner[0] == inner[-1] == "|" and is_name(inner[1:-1]) else None


def _interval(low: tuple[Form, bool], high: tuple[Form, bool]) -> Sequence:
    return Sequence("[" if low[1] else "(", (low[0], high[0]), "]" if high[1] else ")")


def _unfolded(low: tuple[Form, bool], high: tuple[Form, bool]) -> Form:
    """The region of x when |x| lies between low and high."""
    if low[0] == MINUS_INFINITY:
        return _interval((_negated(high[0]), high[1]), high)
    left = (_negated(high[0]), high[1])
    return Union((_interval(left, (_negated(low[0]), low[1])), _interval(low, high)))


def _negated(form: Form) -> Form:
    if isinstance(form, Number):
        return Number(-form.value, form.unit)
    if form == INFINITY:
        return MINUS_INFINITY
    return Expr(f"-({form.text})") if isinstance(form, Expr) else form


def _united(text: str, depth: int) -> Form | None:
    parts = split_top(text, ["\\cup"])
    if len(parts) > 1:
        return Union(tuple(read(part, depth + 1) for _, part in parts))
    parts = split_top(text, ["\\setminus"])
    if len(parts) == 2:
        return Difference(read(parts[0][1], depth + 1), read(parts[1][1], depth + 1))
    if match := re.match(r"^(.*[)\]}])\s*-\s*(\\\{.*\\\})$", text):
        return Difference(read(match[1], depth + 1), read(match[2], depth + 1))
    return None


def _bracketed(text: str, depth: int) -> Form | None:
    wrapped = enclosed(text)
    if wrapped is None:
        return None
    opening, inside, closing = wrapped
    if opening in ("\\{", "{"):
        return _set(inside, opening, depth)
    separator = ";" if len(split_top(inside, [";"])) > 1 else ","
    parts = [part for _, part in split_top(inside, [separator]) if part.strip()]
    if len(parts) == 1:
        return None if (opening, closing) not in (("(", ")"), ("[", "]")) else read(parts[0], depth + 1)
    opening, closing = ("(", ")") if opening == "\\langle" else (opening, closing)
    items = tuple(read(part, depth + 1) for part in parts)
    if (
        opening + closing == "[]"
        and items
        and all(isinstance(item, Sequence) and item.opening == "(" for item in items)
    ):
        return Bag(items)  # a list of pairs
    return Sequence(opening, items, closing) if items else None


def _set(inside: str, opening: str, depth: int) -> Form | None:
    if not inside.strip():
        return EMPTY if opening == "\\{" else None
    for bar in ("|", ":"):
        parts = split_top(inside, [bar])
        if opening == "\\{" and len(parts) == 2:
            if is_name(parts[0][1]) or re.fullmatch(r"\s*\w+\s*\\in\s*\\mathbb\s*\{?R\}?\s*", parts[0][1]):
                return read(parts[1][1], depth + 1)
            if "\\in" in parts[0][1]:
                return None  # over another set than the real line
    form = read(inside, depth + 1)
    if opening == "{":
        return Bag(form.items, braces=True) if isinstance(form, Bag) else form
    return Bag(form.items if isinstance(form, Bag) and not form.braces else (form,), braces=True)


def _matrix(text: str, depth: int) -> Form | None:
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match[2]:
        return None
    rows = [row for row in re.split(r"\\\\|\\cr(?![a-z])", match[2].replace("\\hline", "")) if row.strip()]
    cells = [tuple(read(cell, depth + 1) for cell in re.split(r"(?<!\\)&", row)) for row in rows]
    return Matrix(tuple(cells)) if cells and len({len(row) for row in cells}) == 1 else None


def _leaf(text: str) -> Form:
    if _REAL_LINE.fullmatch(text):
        return REALS
    if text.startswith("\\emptyset") and not text[len("\\emptyset") :].strip():
        return EMPTY
    if re.fullmatch(r"\+?\s*\\infty", text):
        return INFINITY
    if re.fullmatch(r"-\s*\\infty", text):
        return MINUS_INFINITY
    words = _words(text)
    if words is not None:
        return Words(words)
    measured = _measured(text)
    if measured is not None:
        return measured
    value, unit = split_unit(text)
    ratio = split_top(re.sub(r"(?<=\d)(?: to |\s?\\text\{ ?to ?\} ?)(?=\d)", ":", text), [":"])
    if len(ratio) > 1 and all(part.strip() for _, part in ratio):
        clock = re.fullmatch(r"\d{1,2}:[0-5]\d(?::[0-5]\d)?", text)  # a time of day is no proportion
        return Sequence("at" if clock else ":", tuple(_leaf(part.strip()) for _, part in ratio), ":")
    in_function = unit == DEGREE and re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", value)
    return Expr(text) if unit is None or in_function else Expr(value, unit)


def _measured(text: str) -> Number | None:
    """A number written out, with or without a unit."""
    rest, factor = multiplied(text)
    value, unit = split_unit(rest)
    number = read_number(value)
    return None if number is None else Number(number * factor, unit)


def _words(text: str) -> str | None:
    """Folded text when the answer is text alone; single letters are symbols, not words."""
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    marked = "\\text{" in text and not re.sub(r"\\text\{[^{}]*\}", "", text).strip(" .,()")
    plain = plain.strip(" .,;:!\"'")
    if "\\" in plain or not plain or (len(plain) < 3 and plain.lower() not in ("no",) and not marked):
        return None
    if not marked and (
        not re.fullmatch(r"[^\W\d_][^\W\d_' -]*(?:[ '-][^\W\d_' -]+)*", plain) or plain.lower() in _FUNCTION_WORDS
    ):
        return None
    if not marked and (len(plain) < 4 and plain.lower() not in ("yes", "odd", "no")):
        return None
    folded = _ARTICLES.sub(" ", plain.casefold())
    if re.search(r"[^\w\s'.,;:!?()-]", folded):
        return None
    words = re.sub(r"[^\w\s'-]", " ", folded).split()
    return " ".join("solution" if word == "solutions" else word for word in words)
