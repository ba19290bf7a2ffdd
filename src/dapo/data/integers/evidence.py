"""What a problem's text tells about how its answer is to be read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from .forms import LETTERS

_PAIR = re.compile(
    r"ordered pair|ordered triple|\bpoints?\b|coordinate|\bvector|\bpairs?\b|intersect"
    r"|\bvert(?:ex|ices)\b|\bcent(?:er|re)\b|\bfoc(?:us|i)\b|midpoint|\$?\\?\(?\(\s*[a-zA-Z]\s*,\s*[a-zA-Z]\s*\)|坐标|数对|有序|点",
    re.I,
)
_INTERVAL = re.compile(
    r"interval|\bdomain\b|\brange\b|values? of|for which|for what|inequalit|solution set|converge|increasing|decreasing"
    r"|区间|定义域|值域|取值范围|不等式",
    re.I,
)
_LIST = re.compile(r"\ball (?!of\b)|\bvalues\b|solutions|\broots\b|commas?\b|\bpairs\b|\blist\b|所有|全部|哪些", re.I)
_COUNTED = re.compile(
    r"how (?:many|much)|number of|what is (?:the|that)\b|\b(?:least|greatest|smallest|largest)\b"
    r"|\b(?:find|compute|evaluate|calculate) the (?:value|sum|product|area|volume|total|least|greatest)"
    r"|多少|几个",
    re.I,
)
_ASKS_FORM = re.compile(
    r"(?:find|compute|determine|what is|give|enter|submit|求)\s*(?:the value of\s*)?\$?\\?\(?\s*"
    r"[a-zA-Z](?:\s*\+\s*[a-zA-Z]){1,4}\s*(?:\$|\\\)|[.?。]|$)",
    re.I,
)
_SPLIT_FORM = re.compile(
    r"relatively prime|coprime|lowest terms|square of any prime|written in the form|expressed as|互质|互素", re.I
)
_PROOF = re.compile(r"^\s*(?:prove|show) that\b|^\s*证明", re.I)
_QUESTION = re.compile(r"\?|？|\b(?:find|determine|compute|evaluate|calculate|what|how|which)\b|求", re.I)
_ASKING = r"\s*(?:find|determine|compute|evaluate|calculate|what|how|show|prove|求|证明)\b"
_PARTS = re.compile(rf"\((?:a|i|1)\){_ASKING}.*\((?:b|ii|2)\){_ASKING}|（1）\s*[求证].*（2）\s*[求证]", re.S | re.I)
_OBJECTS = (
    r"(?:vectors?|polynomial|quadratic|function|matrix|pair|triple|quadruple|point|solution|basis|eigenvector|root"
    r"|number|example|integer|value|label|counterexample|element|generator)\b"
)
_ANY_ANSWER = re.compile(
    r"\b(?:find|determine|give|construct|provide|name|write|state|exhibit|identify|enter)\s+(?:down\s+)?"
    rf"(?:an?|some|any|one)\s+(?!monic)(?:[\w$\\^{{}}-]+\s+){{0,3}}?{_OBJECTS}"
    r"|\bfind another\b|\b(?:a|any|one) possible (?:value|answer|solution|pair|choice)\b"
    r"|\b(?:find|give|enter|state|determine)\b[^.?!]{0,60}\b(?:either|any|(?:only|just) one) (?:one )?of\b"
    r"|[写举找求给]出?一[个例组对种]|任[写举]|任意写出|写出其中",
    re.I,
)
_FACTORING = re.compile(
    r"(?:^|[.:!?]\s+|completely |fully |please )factor(?:i[sz]e)?\b(?! of\b)|因式分解|分解因式", re.I
)
_FINITE_FIELD = re.compile(
    r"\bGF\s*\((?P<order>[^()]*)\)|[FZ]\}?\s*[_/]\s*(?P<size>\w|\{[^{}]*\}|[^\[\]$.]{1,20}?)\s*(?:\\left)?\["
    r"|\bpolynomials?\b[^.]{0,65}?[FZ]\}?\s*[_/]\s*(?P<modulus>\w|\{[^{}]*\}|\S{1,20})"
)
_DOUBTED = re.compile(
    r"\b(?:verify|determine|decide|check)\s+(?:if|whether|that)\b|\bis\b[^.?]{0,80}\bonly (?:solution|one|set)\b", re.I
)
_DIVISOR = re.compile(r"(?:\bgcd\b|greatest common (?:divisor|factor))", re.I)
_ESTIMATE = re.compile(r"\bapproximat|\bestimat|central limit theorem|近似|估计", re.I)
_UNIT_LETTERS = frozenset("mgshdlLNJVAWKCFHT")
_VECTOR_LETTERS = (
    r"\\(?:mathbf|boldsymbol|bm|bf|hat|vec|overrightarrow|widehat)\s*\{?\s*(?:\\mathbf\s*\{?\s*)?\\?%s(?![A-Za-z])"
)
_MATHEMATICS = re.compile(r"\$\$(.*?)\$\$|\$(.*?)\$|\\\((.*?)\\\)|\\\[(.*?)\\\]", re.S)
_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_WORDS += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORD = re.compile(rf"\b(?:({'|'.join(_TENS)})(?:[\s-]+({'|'.join(_WORDS[1:10])}))?|({'|'.join(_WORDS)}))\b", re.I)
_HAN = {character: at + 1 for at, character in enumerate("一二三四五六七八九")} | {"两": 2, "零": 0}
_HAN_RUN = re.compile(r"[零一二两三四五六七八九十百千万]+")
_HAN_TENS = re.compile(r"([一二三四五六七八九]?)十([一二三四五六七八九]?)")


def pair_or_interval(problem: str) -> str:
    """`pair`, `interval`, or `` where the text speaks of neither or of both."""
    pair, interval = bool(_PAIR.search(problem)), bool(_INTERVAL.search(problem))
    return "" if pair == interval else "pair" if pair else "interval"


def list_or_number(problem: str) -> str:
    """`number` where the text asks for a single quantity and speaks of no list, or else ``."""
    return "number" if _COUNTED.search(problem) and not _LIST.search(problem) else ""


def uses_i_as_index(problem: str) -> bool:
    """Whether the letter i numbers something in a problem, and so may not be the imaginary unit."""
    return is_vector("i", problem) or bool(
        re.search(r"_\{?\s*i(?![A-Za-z])|(?<![A-Za-z\\])i\s*(?:=|\\in|\\leq?|<|th\b)", problem)
    )


def is_vector(letter: str, problem: str) -> bool:
    """Whether a problem sets the letter bold or under a hat, as the unit vectors i and j are."""
    name = f"{letter}(?:math)?" if letter in "ij" else re.escape(letter)
    return bool(re.search(_VECTOR_LETTERS % name, problem))


def is_unit(letter: str, problem: str) -> bool:
    """Whether a letter stands behind a number as a unit: in `10 N` outside of mathematics, or upright in it."""
    if letter not in _UNIT_LETTERS:
        return False
    outside = _MATHEMATICS.sub(" $ ", problem)
    upright = rf"[\d$}}]\s*(?:~|\\[,; ])*\\(?:text|textrm|mathrm|mbox|rm)\s*\{{?\s*{letter}(?![A-Za-z])"
    return bool(re.search(rf"[\d$]\s*{letter}(?![A-Za-z])", outside) or re.search(upright, problem))


def asks_to_factor(problem: str) -> bool:
    """Whether a polynomial is given and only its factors are asked for."""
    return bool(_FACTORING.search(problem))


def over_finite_field(variable: str, problem: str) -> bool:
    """Whether polynomials of the problem have residues for coefficients, which are no definite integers.

    Where the variable is the field's size, as p in `F_p`, the answer is no polynomial over the field.
    """
    sizes = (match["order"] or match["size"] or match["modulus"] or "" for match in _FINITE_FIELD.finditer(problem))
    return any(not re.search(rf"(?<![A-Za-z\\]){re.escape(variable)}(?![A-Za-z])", size) for size in sizes)


def is_given(answer: str, problem: str) -> bool:
    """Whether the problem names the answer and asks if it is right, or has a tuple as something's value."""
    found = _bare(answer)
    given, doubted = _bare(problem), bool(_DOUBTED.search(problem))
    return ("," in found and "=" + found in given) or (
        doubted and bool(re.search(rf"(?<![\w.}}-]){re.escape(found)}(?![\w.{{^])", given))
    )


def _bare(text: str) -> str:
    """A text without spaces and without what only sets its fractions."""
    return re.sub(r"\s|\\left|\\right", "", text.replace("dfrac", "frac").replace("tfrac", "frac"))


def up_to_units(problem: str) -> bool:
    """Whether a common divisor is asked for: of Gaussian integers or polynomials it is known up to a factor only."""
    return bool(_DIVISOR.search(problem))


def is_estimate(problem: str) -> bool:
    """Whether a value is asked for that depends on how it is approximated."""
    return bool(_ESTIMATE.search(problem))


def objection(problem: str) -> str | None:
    """A reason for which no problem with this text is rewritten, or None."""
    if not problem.strip():
        return "empty"
    if _PROOF.search(problem) and not _QUESTION.search(problem):
        return "proof"
    if _PARTS.search(problem):
        return "multiple_parts"
    if _SPLIT_FORM.search(problem) and _ASKS_FORM.search(problem):
        return "asks_form"
    if _ANY_ANSWER.search(problem):
        return "not_unique"
    return None


def is_chinese(problem: str, language: str | None) -> bool:
    """Whether the sentences are to be in Chinese: asked for, or a tenth of the characters are ideographs."""
    if language is not None:
        return language.lower().startswith("zh")
    solid = [character for character in problem if not character.isspace()]
    return sum("\u4e00" <= character <= "\u9fff" for character in solid) * 10 >= max(1, len(solid))


def free_letters(text: str) -> list[str]:
    """Letters for parameters that no variable of the problem or the answer has."""
    used = used_letters(text)
    return [letter for letter in LETTERS if letter not in used]


def used_letters(text: str) -> set[str]:
    """Letters that may be variables.

    A letter is one if it stands in mathematics outside of a command's name, or alone in the text.
    """
    used = set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", text))
    for match in _MATHEMATICS.finditer(text):
        inner = next(part for part in match.groups() if part is not None)
        inner = re.sub(r"\\(?:text|mbox|textrm|textbf|begin|end)\s*\{[^{}]*\}", " ", inner)
        used |= set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", inner)))
    return used


def numbers_in(text: str) -> Iterator[str]:
    """Every number token of a text as digits without leading zeros or sign, thousands with and without their commas.

    English words and Chinese numerals below a hundred count.
    """
    plain = "".join(_ascii_digit(character) for character in text)
    joined = re.sub(r"(?<=\d)(?:,\\!|\{,\}|,|\\,)\s?(?=\d{3}(?!\d))", "", plain)
    for version in (plain, joined):
        for run in re.findall(r"[0-9]+", version):
            yield run.lstrip("0") or "0"
    for tens, ones, word in _WORD.findall(text.lower()):
        units = _WORDS.index(word or ones) if word or ones else 0
        yield str(units + (10 * _TENS.index(tens) + 20 if tens else 0))
    for run in _HAN_RUN.findall(text):
        match = _HAN_TENS.fullmatch(run)
        if match:
            yield str(10 * _HAN.get(match[1], 1) + _HAN.get(match[2], 0))
        elif run in _HAN:
            yield str(_HAN[run])


def _ascii_digit(character: str) -> str:
    """A digit of any script as an ASCII digit, all else as it is."""
    if character.isascii():
        return character
    value = unicodedata.digit(character, None)
    return character if value is None else str(value)


def stands_in(value: int, text: str) -> bool:
    """Whether an integer, its sign aside, is among a text's number tokens."""
    wanted = str(abs(value))
    return any(token == wanted for token in numbers_in(text))
