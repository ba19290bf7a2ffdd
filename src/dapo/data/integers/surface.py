"""The outside of an answer: what is stripped, what is refused on sight, and which family it goes to."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sympy

from .bounded import LatexError
from .evidence import is_given, list_or_number, pair_or_interval, up_to_units, uses_i_as_index
from .exact import exact, rational
from .forms import Form, Refused
from .latex import MAX_LENGTH, parse, words
from .numeric import numeric_form
from .scalar import polynomial_form, scaled_form
from .structured import base_form, entries_form, set_form

_NUMBER = r"[+-]?(?:\d{1,3}(?:(?:,\\!|\{,\}|,|\\,)\s*\d{3})+(?!\d)|\d+)?(?:\.\d+)?"
_LAYOUT = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle|^(?:\\[,;!: ]|\\q?quad(?![a-z]))+")
_WRAPPED = re.compile(r"\\boxed\s*\{(.*)\}|\\\((.*)\\\)|\\\[(.*)\\\]", re.S)
_BASE = re.compile(
    r"(-?\d+|\(\d+\))\s*_\s*(?:\{\s*(?:\\(?:text|mathrm)\s*\{)?\s*([a-z]+|\d+)\s*\}?\s*\}|(\d+))", re.ASCII
)
_BASE_WORDS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+", re.ASCII)
_TEXT = r"\\(?:text|textrm|textnormal|mbox|mathrm|rm|textbf)\s*"
_UNIT = re.compile(
    rf"(?P<number>.*?[\d}})i])\s*(?:\\ )?\s*(?:{_TEXT}\{{\s*(?P<words>[A-Za-z][A-Za-z .\-/]*?)\.?\s*\}}"
    r"(?:\s*\^\s*\{?\s*(?P<power>[23])\s*\}?)?"
    rf"|(?P<degree>\^\s*(?:\\circ|\{{\s*\\circ\s*\}})|\\degree)(?:\s*(?:{_TEXT}\{{)?\s*(?P<scale>[CF])\}}?)?"
    r"|\s(?P<plain>[a-z][a-z ]*)|(?P<percent>\\?%))",
    re.S,
)
_PLAIN_UNITS = words(
    "cm mm km ft in inches inch feet foot meters metres miles dollars cents hours minutes seconds days weeks years "
    "degrees units pounds grams kg liters litres square cubic percent mph"
)
_NO_UNIT = words(
    "and or mod to am pm th st nd rd base times approximately about if for where is at with the a plus "
    "million thousand hundred billion million remainder none from on"
)
_CHOICE = re.compile(r"[(\[]?\s*([A-J])\s*[)\].]?|[(\[]\s*[a-eA-J]\s*[)\]]")
_RELATION = re.compile(
    r"[=<>≤≥≠∈]|\\(?:leq?|geq?|neq?|lt|gt|equiv|in|notin|to|mapsto|mid"
    r"|leqslant|geqslant|sim|cong|iff|implies)(?![A-Za-z])"
)
_LOSSY = re.compile(r"\\approx|≈|approx|\\[lcd]?dots|\.\.\.|…|\babout\b|\broughly\b")
_POINT = re.compile(r"\.\d")
_MATRIX = re.compile(r"\\begin\{([pbv]?matrix)\}(.*)\\end\{\1\}", re.S)
_DOT_PRODUCT = re.compile(r"[A-Za-z}]\s*\\(?:cdot|times)\s*[A-Za-z\\]")
_SEPARATORS = re.compile(r",?\s*(?:\\(?:text|mbox|textrm|mathrm)\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")


def cleaned(answer: str) -> str:
    """The answer without what only sets it: dollar signs of mathematics, a box, a full stop, spaces around."""
    text = answer.strip()
    for _ in range(3):
        text = re.sub(r"(?<!\\)\$", "", text).strip()
        match = _WRAPPED.fullmatch(text)
        text = next(part for part in match.groups() if part is not None).strip() if match else text
    text = _LAYOUT.sub("", text).strip()
    text = text.replace("−", "-").replace("°", "^\\circ")
    return text if text.endswith("...") else text.removesuffix(".").strip()


def canonical_integer(answer: str) -> str | None:
    """The integer that an answer spells, as plain digits, or None.

    >>> [canonical_integer(text) for text in ("025", "1,000", "-7", "34.0", "$5$", "\\\\frac{6}{3}", "1,2", "5\\\\%")]
    ['25', '1000', '-7', '34', '5', '2', None, None]
    """
    if len(answer) > MAX_LENGTH:
        return None
    text = cleaned(answer)
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    try:
        value = parse(text)
        whole = None if value.free_symbols else rational(exact(value))
    except LatexError:
        return None
    return str(whole.numerator) if whole is not None and whole.denominator == 1 else None


def is_grouped(answer: str) -> bool:
    """Whether an answer is `5,150` or the like, which may be a list of numbers just as well.

    `1,000` is none of these, as no list has an entry 000.
    """
    text = cleaned(answer)
    return bool(_GROUPED.fullmatch(text)) and not any(part.startswith("0") for part in text.split(",")[1:])


def split(text: str) -> list[str]:
    """The parts between commas that stand outside all brackets; `{,}` and `,\\!` are no such commas."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 0 and not text.startswith("\\!", at + 1) and text[at - 1 : at] != "\\") or (
            character == ";" and depth == 0 and text[at - 1 : at] != "\\"
        ):
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]]]


def classify(answer: str, problem: str, letters: Sequence[str]) -> Form:
    """The form of an answer that is no integer.

    Args:
        answer: Up to 300 characters.
        problem: Read only where the notation leaves several readings.
        letters: Free letters for the form.

    Raises:
        Refused: With the reason.
        LatexError: Likewise.
    """
    text = cleaned(answer)
    if not text:
        raise Refused("empty")
    _refuse_on_sight(text)
    form = _classified(text, problem, letters)
    if _POINT.search(text) and form.family not in ("decimal", "percent", "unit"):
        raise Refused("lossy")  # 0.33 inside of a form may be rounded, and no sentence says to how many places
    if form.family in ("complex", "polynomial") and up_to_units(problem):
        raise Refused("not_unique")
    if form.family not in ("polynomial", "base") and is_given(text, problem):
        raise Refused("leaks")
    return form


def _classified(text: str, problem: str, letters: Sequence[str]) -> Form:
    """The form by the first shape that fits."""
    base = _BASE.fullmatch(text)
    if base:
        word = base[2] or base[3]
        number = _BASE_WORDS.index(word) + 2 if word in _BASE_WORDS else int(word[:4]) if word.isdigit() else 0
        return base_form(base[1].strip("()"), number, letters)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        if matrix[1] not in ("pmatrix", "bmatrix"):
            raise Refused("unsupported")
        lines = matrix[2].strip().removesuffix("\\\\").split("\\\\")
        rows = [[cell.strip() for cell in line.split("&")] for line in lines]
        return entries_form(rows, letters, "matrix", (f"\\begin{{{matrix[1]}}} ", f" \\end{{{matrix[1]}}}"))
    bracketed = _bracketed(text, problem, letters)
    if bracketed is not None:
        return bracketed
    return _listed(text, problem, letters) or _measured(text, problem, letters) or _plain(text, problem, letters)


def _refuse_on_sight(text: str) -> None:
    """What needs no parsing to be refused."""
    bare = re.sub(rf"{_TEXT}\{{([^{{}}]*)\}}", r"\1", text).strip()
    if _CHOICE.fullmatch(bare):
        raise Refused("choice_letter")
    if "\\pm" in text or "\\mp" in text or "±" in text:
        raise Refused("plus_minus")
    if _LOSSY.search(text):
        raise Refused("lossy")
    if "\\infty" in text or "∞" in text:
        raise Refused("interval" if "," in text else "infinite")
    if re.search(r"\\(?:cup|cap|setminus)(?![A-Za-z])|∪", text):
        raise Refused("interval")
    if _RELATION.search(text):
        raise Refused("equation")
    if re.fullmatch(r"\W*(?:[A-Za-z]{2,}|[A-Za-z]+'s|a)(?:[\s,.\-]+[A-Za-z0-9']+)*\W*", bare) and "\\" not in bare:
        raise Refused("prose")


def _bracketed(text: str, problem: str, letters: Sequence[str]) -> Form | None:
    """Tuples, sets and intervals; None if no single pair of brackets holds several entries."""
    openers = {"(": ")", "[": "]", "\\{": "\\}", "\\langle": "\\rangle"}
    opening = next((opener for opener in openers if text.startswith(opener)), None)
    if opening is None:
        return None
    closing = next((closer for closer in ("\\rangle", "\\}", ")", "]") if text.endswith(closer)), "")
    inside = text[len(opening) : len(text) - len(closing)]
    if not closing or not _closes_at_the_end(inside):
        return None
    parts = split(inside)
    if opening == "\\{":
        if closing != "\\}" or not inside.strip():
            raise Refused("unsupported")
        _refuse_broken_thousands(parts)
        if any(re.match(r"\(|\[|\\\{", part) for part in parts):
            raise Refused("multiple_parts")
        return set_form(parts, letters)
    if len(parts) < 2:
        return None
    _refuse_broken_thousands(parts)
    if (opening, closing) in (("(", "]"), ("[", ")")):
        raise Refused("interval")
    if len(parts) == 2 and opening != "\\langle":
        if opening == "[":
            raise Refused("interval")
        _refuse_open_pair(parts, problem)
    close = openers[opening]
    if closing != close:
        raise Refused("unreadable")
    return entries_form([parts], letters, "tuple", (opening + " " * (opening == "\\langle"), close))


def _closes_at_the_end(inside: str) -> bool:
    """Whether the first bracket is closed by the last one, as the depth between them never falls below 0."""
    depth = 0
    for character in inside:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _refuse_open_pair(parts: list[str], problem: str) -> None:
    """A pair in round brackets may be an open interval, unless it falls or the problem speaks of points."""
    values = [rational(exact(value)) for value in map(parse, parts)]
    if values[0] is not None and values[1] is not None and values[0] >= values[1]:
        return
    verdict = pair_or_interval(problem)
    if verdict != "pair":
        raise Refused("interval" if verdict == "interval" else "ambiguous_pair")


def _refuse_broken_thousands(parts: Sequence[str]) -> None:
    """`(1,000, 2)`: an entry such as 000 shows that a comma separated thousands."""
    if any(re.fullmatch(r"0\d+", part.strip()) for part in parts[1:]):
        raise Refused("ambiguous_comma")


def _listed(text: str, problem: str, letters: Sequence[str]) -> Form | None:
    """A list of integers without brackets; None if the text is none."""
    text = _SEPARATORS.sub(", ", text)
    parts = split(text)
    if len(parts) < 2:
        return None
    if _GROUPED.fullmatch(text) and list_or_number(problem) != "number":
        raise Refused("ambiguous_comma")
    if re.match(r"\\?\$", text) or re.fullmatch(rf"{_NUMBER}(?:\.\d+)?\s*(?:\\?%|\\text.*|\^.*|[a-z ]+)", text):
        return None
    if any(re.match(r"\(|\[|\\\{|\\begin", part) and len(split(part[1:-1])) > 1 for part in parts):
        raise Refused("multiple_parts")
    if any(not part for part in parts):
        raise Refused("unreadable")
    if re.search(r"\d,\d{3}(?!\d)", text) and all(re.fullmatch(r"-?\d+", part) for part in parts):
        raise Refused("ambiguous_comma")
    return set_form(parts, letters)


def _measured(text: str, problem: str, letters: Sequence[str]) -> Form | None:
    """A number with a dollar sign, a percent sign, a degree sign or a unit in words; None if there is none."""
    money = re.match(r"\\?\$\s*", text)
    rest = re.sub(r"^(?:\\[,; ]|\s)+", "", text[money.end() :]) if money else text
    if money and re.fullmatch(_NUMBER, rest) and rest:
        return scaled_form(_digits(rest), letters, "unit", "dollars", problem)
    if re.fullmatch(_NUMBER, text) and "." in text:
        return scaled_form(_digits(text), letters, "decimal", "", problem)
    match = None if money else _UNIT.fullmatch(text)
    if match and match["plain"] and not _PLAIN_UNITS.issuperset(match["plain"].split()):
        match = None
    if not match:
        if "\\text" in text or "\\mbox" in text or money:
            raise Refused("unsupported" if re.search(r"\d", text) else "prose")
        return None
    unit = _unit_name(match)
    number = re.sub(r"(?:\\[,;: ]|\s|~)+$", "", match["number"])
    if re.fullmatch(_NUMBER, number):
        return scaled_form(_digits(number), letters, "percent" if unit == "percent" else "unit", unit, problem)
    value = parse(number)
    if value.free_symbols:
        raise Refused("variables")
    if value.is_Integer:
        return scaled_form(str(value), letters, "percent" if unit == "percent" else "unit", unit, problem)
    return numeric_form(value, letters, unit)


def _digits(text: str) -> str:
    """A number's sign, digits and point."""
    found = re.sub(r"[^\d.-]", "", text)
    if len(found) > 30:
        raise LatexError("too_large")
    return found


def _unit_name(match: re.Match[str]) -> str:
    """The unit in words as a sentence names it.

    Raises:
        Refused: `unsupported` if the words are no unit.
    """
    if match["percent"]:
        return "percent"
    if match["degree"]:
        return "degrees" + {"C": " Celsius", "F": " Fahrenheit"}.get(match["scale"] or "", "")
    words = (match["words"] or match["plain"]).strip()
    parts = re.split(r"[\s/\-]+", words.lower().replace(".", ""))
    if len(words) > 40 or not _NO_UNIT.isdisjoint(parts):
        raise Refused("unsupported")
    return f"$\\text{{{words}}}^{{{match['power']}}}$" if match["power"] else words


def _plain(text: str, problem: str, letters: Sequence[str]) -> Form:
    """A number without a unit, or a polynomial."""
    value = parse(text)
    if value.free_symbols:
        if _DOT_PRODUCT.search(text):
            raise Refused("variables")
        return polynomial_form(value, letters, problem)
    if value.has(sympy.I) and uses_i_as_index(problem):
        raise Refused("ambiguous")
    if value.is_Integer:
        raise Refused("unsupported")
    return numeric_form(value, letters)
