r"""Units behind an answer: read off, told apart, and converted only where that is asked for.

An answer is split into a value and a unit. Known units carry a dimension and an exact factor;
an unknown noun ("apples") is its own unit. The rules of agreement are in `agree`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from dapo.reward.number import read_number

# name -> factor to the dimension's base. Plural s and full stops are taken off before a look-up.
_CONVERTIBLE: dict[str, dict[str, Fraction]] = {
    "length": {
        **dict.fromkeys(("m", "meter", "metre"), Fraction(1)),
        **dict.fromkeys(("cm", "centimeter", "centimetre"), Fraction(1, 100)),
        **dict.fromkeys(("mm", "millimeter", "millimetre"), Fraction(1, 1000)),
        **dict.fromkeys(("km", "kilometer", "kilometre"), Fraction(1000)),
        **dict.fromkeys(("inch", "in"), Fraction(254, 10_000)),
        **dict.fromkeys(("foot", "feet", "ft"), Fraction(3048, 10_000)),
        **dict.fromkeys(("yard", "yd"), Fraction(9144, 10_000)),
        **dict.fromkeys(("mile", "mi"), Fraction(1_609_344, 1000)),
    },
    "time": {
        **dict.fromkeys(("s", "sec", "second"), Fraction(1)),
        **dict.fromkeys(("min", "minute"), Fraction(60)),
        **dict.fromkeys(("h", "hr", "hour"), Fraction(3600)),
        "day": Fraction(86_400),
        "week": Fraction(604_800),
    },
    "mass": {
        **dict.fromkeys(("g", "gram"), Fraction(1)),
        **dict.fromkeys(("kg", "kilogram"), Fraction(1000)),
        **dict.fromkeys(("mg", "milligram"), Fraction(1, 1000)),
        "tonne": Fraction(1_000_000),
    },
    "volume": {
        **dict.fromkeys(("l", "liter", "litre"), Fraction(1)),
        **dict.fromkeys(("ml", "milliliter", "millilitre"), Fraction(1, 1000)),
    },
}
# Spellings of units that are not converted.
_OPAQUE = {
    "dollar": "dollar", "usd": "dollar", "cent": "cent", "penny": "cent", "euro": "euro", "eur": "euro", "yuan": "yuan",
    "rmb": "yuan", "yen": "yen", "rupee": "rupee", "pound": "pound", "lb": "pound", "ounce": "ounce", "oz": "ounce",
    "ton": "ton", "gallon": "gallon", "month": "month", "year": "year", "yr": "year", "mph": "mile / h",
    "kph": "km / h", "hz": "hertz", "hertz": "hertz", "newton": "newton", "joule": "joule", "watt": "watt",
    "volt": "volt", "ohm": "ohm", "ampere": "ampere", "amp": "ampere", "kelvin": "kelvin", "mole": "mole",
    "mol": "mole", "radian": "radian", "rad": "radian", "acre": "acre", "people": "person", "person": "person",
    "children": "child",
    "child": "child", "men": "man", "man": "man", "women": "woman", "woman": "woman", "celsius": "celsius",
    "fahrenheit": "fahrenheit",
}  # fmt: skip
KNOWN: dict[str, tuple[str, Fraction]] = {
    name: (dimension, factor) for dimension, table in _CONVERTIBLE.items() for name, factor in table.items()
} | {name: (key, Fraction(1)) for name, key in _OPAQUE.items()}
GENERIC = frozenset({"unit", "u"})
# Words that no unit holds: what has one of them is a remark.
_REFUSED = frozenset(
    "is are was be not no or and but if nor neither either maybe perhaps probably possibly wrong right correct "  # noqa: SIM905
    "incorrect than less more most least at about approximately approx roughly almost nearly isn aren cannot can "
    "could should would might may unknown undefined none answer equals equal so because since where for any all "
    "with without true false yes when as by hence thus then else plus minus times over infinitely to from "
    "zero one two three four five six seven eight nine ten eleven twelve twenty fifty half halves third thirds quarter "
    "quarters fourths fifths tenths factorial modulo mod squares "
    "dozen hundred thousand million billion trillion alpha beta gamma delta theta lambda pi sigma omega phi "
    "sin cos tan log exp sinh cosh tanh sqrt max min gcd lcm".split()
)

_LETTERS = frozenset("mshglL")
MULTIPLIERS = {
    "dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12
}  # fmt: skip
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


@dataclass(frozen=True, slots=True)
class Unit:
    """kind: percent, degree, ordinal, base, modulus, generic, known or noun. key: what two equal units share.

    dimension and factor hold for known units of length, time, mass or volume: equal dimensions convert.
    """

    kind: str
    key: str
    dimension: str = ""
    factor: Fraction = Fraction(1)


PERCENT, DEGREE = Unit("percent", "%"), Unit("degree", "degree")
ORDINAL, GENERIC_UNIT = Unit("ordinal", ""), Unit("generic", "")

_EXPONENT = r"(?: ?\^ ?\{? ?[23] ?\}?)?"
_WORD = rf"[A-Za-z][A-Za-z.]*{_EXPONENT}"
_TRAILING_TEXT = re.compile(
    rf"^(?P<value>.*?[\d)}}\]A-Za-z.|])(?P<space> ?)(?P<unit>(?:\\text\{{[^{{}}]*\}}{_EXPONENT} ?/? ?)+)$"
)
_TRAILING_WORDS = re.compile(
    r"^(?P<value>.*?(?:\d|[)}\]]|\\pi)\.?)(?P<space> ?)"
    rf"(?P<unit>[\u4e00-\u9fff]{{1,4}}|{_WORD}(?:(?: | ?/ ?){_WORD}){{0,4}})$"
)
_LEADING_TEXT = re.compile(
    r"^(?P<sign>[-+]?) ?(?:US ?)?(?:\\text\{ ?(?P<unit>dollars?|euros?|pounds?|yuan|RMB|USD) ?\}"
    r"|(?P<bare>USD|EUR|RMB)) ?(?P<value>[-+]?[\d.\\(].*)$"
)
_ORDINAL = re.compile(
    r"^(?P<value>\d+)\s*\^?\s*\{?\s*(?:\\text\{\s*(?:th|st|nd|rd)\s*\}|(?:th|st|nd|rd)(?![a-z]))\s*\}?\s*(?P<rest>.*)$"
)
_BASE = re.compile(r"\(?\s*(-?\d+)\s*\)?\s*_\s*(?:\{\s*(?:\\text\{)?\s*(\d{1,3})\s*\}?\s*\}|(\d))")
_IN_BRACKETS = re.compile(r" ?\(((?:\\text\{[^{}]*\}|[A-Za-z]{2,})(?: ?\^ ?\{?[23]\}?)?)\)$")
_MODULUS = re.compile(r" ?\\pmod ?\{?(\d+)\}?$| ?\( ?\\?mod ?(\d+) ?\)$")
_MULTIPLIER = re.compile(
    r"([^A-Za-z]+?) ?(?:\\text\{ ?)?(dozen|hundred|thousand|million|billion|trillion)s?(?![a-z])(?: of)?"
    r"((?: [A-Za-z]+){0,3}) ?\}?",
    re.IGNORECASE,
)
_FRACTION_UNIT = re.compile(r"\\frac\s*\{\s*\\text\{([^{}]*)\}\s*\}\s*\{\s*\\text\{([^{}]*)\}\s*\}$")


def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""(value, unit or None) of a cleaned answer. A text that is no unit stays in the value.

    >>> split_unit(r"15 \text{ cm}^2")[1].key, split_unit(r"5\%")[1].kind, split_unit("xy")
    ('cm^2', 'percent', ('xy', None))
    """
    if text.endswith("\\%"):
        return text[:-2].strip(), PERCENT
    if text.endswith("^{\\circ}"):
        return text[: -len("^{\\circ}")].strip(), DEGREE
    if match := _ORDINAL.match(text):
        rest = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", match["rest"])
        if not rest.strip() or _named(rest) is not None:
            return match["value"], ORDINAL
    if match := _BASE.fullmatch(text):
        return match[1], Unit("base", f"base {int(match[2] or match[3])}")
    if match := _LEADING_TEXT.match(text):
        return f"{match['sign']}{match['value']}", _named(match["unit"] or match["bare"])
    if match := _FRACTION_UNIT.search(text):
        return text[: match.start()].strip(), _named(f"{match[1]} per {match[2]}")
    if match := _MODULUS.search(text):
        return text[: match.start()].strip(), Unit("modulus", f"mod {match[1] or match[2]}")
    return _trailing(text)


def _trailing(text: str) -> tuple[str, Unit | None]:
    """A unit in words behind the value: any noun behind a number written out, else only a known unit."""
    text = _IN_BRACKETS.sub(lambda m: f" {m[1]}", text)
    match = _TRAILING_TEXT.match(text) or _TRAILING_WORDS.match(text)
    if match is None:
        return text, None
    words = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", match["unit"])
    if "\\text" not in match["unit"] and not _bare_words_allowed(words):
        return text, None
    unit, value = _named(words), match["value"].strip()
    known = unit is not None and (unit.kind != "noun" or read_number(value) is not None)
    spaced = "\\text" in match["unit"] or match["space"] or not unit or unit.kind != "noun"
    return (value, unit) if known and spaced else (text, None)


def multiplied(text: str) -> tuple[str, int]:
    """(text without a trailing million or the like, its factor)."""
    match = _MULTIPLIER.fullmatch(text)
    if match is None or _named(match[3] or "unit") is None:
        return text, 1
    return f"{match[1]} {match[3] or ''}".strip(), MULTIPLIERS[match[2].lower()]


def bare_letter(text: str, unit: Unit) -> str | None:
    """The number in front of a single letter that names this very unit: 1.5 m where metres are asked for."""
    match = re.match(r"^(.*[\d}])\s*([A-Za-z])$", text)
    named = _named(match[2]) if match and match[2] in _LETTERS else None
    return match[1] if match and named and named.kind == "known" and named.key == unit.key else None


def _bare_words_allowed(words: str) -> bool:
    """Letters without \\text are variables unless they are a known unit or a word."""
    if re.fullmatch(r"[\u4e00-\u9fff]{1,4}", words):
        return not re.search("[不否或非约无没]", words)
    if "/" in words:
        return all(_singular(part.strip().lower()) in KNOWN for part in re.sub(r"\^\{?\d\}?", "", words).split("/"))
    if words.startswith("per "):
        return True
    first = re.split(r"[\s/^]", words.strip())[0].rstrip(".")
    return len(first) > 3 or (len(first) > 1 and _singular(first.lower()) in KNOWN)


def _singular(word: str) -> str:
    if word in KNOWN or len(word) < 3:
        return word
    for ending, stem in (("ches", "ch"), ("ies", "y"), ("s", "")):
        if word.endswith(ending) and not word.endswith("ss"):
            return word[: -len(ending)] + stem
    return word


def _named(text: str) -> Unit | None:
    """The unit that these words name; None when they are no noun phrase."""
    text = re.sub(r"[{}]", "", text.strip().strip(".,;:()").strip())
    text = re.sub(r"\s*\^\s*", "^", text)
    text = re.sub(r"\s*/\s*|(?:^|\s+)per\s+", " / ", text)
    words = [word.rstrip(".") for word in text.split() if word.rstrip(".")]
    if not words or len(words) > 6 or any(word.lower() in _REFUSED for word in words):
        return None
    if any(re.search(r"(?:dth|ndredth|ousandth|illionth)s?$", word) for word in words):
        return None
    if words[0] == "/" and len(words) > 1:  # per day
        return Unit("known", " ".join(_canonical(_singular(word)) for word in words))
    if not all(re.fullmatch(r"[^\W\d_][\w'’-]*(?:\^[23])?|/", word) for word in words):
        return None
    power, kept = 1, []
    for word in words:
        lower = word.lower()
        if lower in _POWER_WORDS:
            power = _POWER_WORDS[lower]
        elif lower == "squared" or lower == "cubed":
            power = 2 if lower == "squared" else 3
        elif lower not in ("of", "the", "in"):
            kept.append(lower)
        elif lower == "in" and len(words) == 1:
            kept.append("in")
    return _build(kept, power)


def _build(words: list[str], power: int) -> Unit | None:
    if not words or (len(words) == 1 and len(words[0]) == 1 and words[0].isascii() and words[0] not in KNOWN):
        return None
    if len(words) == 1:
        stem, _, exponent = words[0].partition("^")
        power = int(exponent) if exponent else power
        stem = _singular(stem)
        if stem in GENERIC:
            return GENERIC_UNIT
        if stem == "degree":
            return DEGREE
        if stem in KNOWN:
            dimension, factor = KNOWN[stem]
            key = f"{_canonical(stem)}^{power}" if power > 1 else _canonical(stem)
            return Unit("known", key, f"{dimension}^{power}", factor**power)
    if "/" in words:
        return Unit("known", " ".join(_canonical(_singular(word)) for word in words))
    return Unit("noun", " ".join(_singular(word) for word in words))


def _canonical(stem: str) -> str:
    """One name for all spellings of a unit."""
    if stem not in KNOWN:
        return stem
    dimension, factor = KNOWN[stem]
    if dimension not in _CONVERTIBLE:
        return dimension
    return next(name for name, other in _CONVERTIBLE[dimension].items() if other == factor)


def agree(gold: Unit | None, pred: Unit | None) -> bool:
    """Whether a prediction in `pred` may answer a gold in `gold` with the same number.

    The base of a numeral counts as its unit: 204 answers 204_5, while 204_5 answers no 204.
    No unit on either side agrees with any (percent is settled by the comparison itself); two units
    agree when they are the same, or when one noun phrase holds all words of the other.
    """
    if pred is not None and pred.kind == "base" and (gold is None or gold.kind != "base"):
        return pred.key == "base 10"
    if gold is None or pred is None or "generic" in (gold.kind, pred.kind) or "ordinal" in (gold.kind, pred.kind):
        return True
    if gold.key == pred.key:
        return True
    if gold.kind == pred.kind == "noun":
        ours, theirs = set(gold.key.split()), set(pred.key.split())
        return ours <= theirs or theirs <= ours
    return False


def conversion(gold: Unit, pred: Unit) -> Fraction | None:
    """The exact factor from `pred` to `gold`; None when their dimensions differ or are not known."""
    if gold.dimension != pred.dimension or gold.dimension.partition("^")[0] not in _CONVERTIBLE:
        return None
    return pred.factor / gold.factor
