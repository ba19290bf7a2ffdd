r"""Problem texts made comparable: the same problem in another typesetting, its words, and their n-grams.

Signs that carry meaning stay: a normalisation that keeps letters and digits alone takes x^8 + 98x^4 + 1 for
x^8 - 98x^4 + 1, and \frac{11}{2} for \frac{1}{12}.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from hashlib import blake2b

# LaTeX that changes how a text looks and not what it says.
_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|bigl?|bigr?|Bigl?|Bigr?|quad|qquad|noindent)(?![A-Za-z])"
    r"|\\[,;:! ()\[\]]|\$|(?<=[\w.,;:)}\]$])~|[\"“”„«»]|&nbsp;"
)
_QUOTED = re.compile(r"``([^`\n]*?)''|(?<![\w)\]}'])'([^'\n]{1,80})'(?![\w'])")
_PRIME = re.compile(r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+|[₀₁₂₃₄₅₆₇₈₉]+")
_RATIO = re.compile(r"(?:(?<=\d)|(?<=\b[^\W\d_]))\s*:\s*(?=\d|[^\W\d_]\b)")
_HEADING = re.compile(r"^\s*#+\s", re.MULTILINE)
_COMMANDS = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "leq": "<=", "leqslant": "<=", "le": "<=",
    "geq": ">=", "geqslant": ">=", "ge": ">=", "neq": "!=", "ne": "!=", "cdot": "·", "times": "×", "div": "/",
    "ldots": "...", "cdots": "...", "dots": "...", "dotsc": "...", "text": "", "mathrm": "", "textbf": "", "mathbf": "",
    "operatorname": "", "lvert": "|", "rvert": "|", "vert": "|", "lbrace": r"\{", "rbrace": r"\}",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)\s*")
_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "⋅": "·", "÷": "/", "′": "'", "″": "''", "≤": "<=", "≥": ">=", "≠": "!=", "…": "...",
     "’": "'", "‘": "'", "。": ".", "、": ",", "π": r"\pi", "∠": r"\angle", "△": r"\triangle", "√": r"\sqrt"}
)  # fmt: skip
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\{,\}|,)\\?!?\d{3})+(?![\d,])")
# One letter or command in braces is the same without; one digit after ^, _, \sqrt or \frac the same with.
_LETTER_IN_BRACES = re.compile(r"(?<!\\)\{\s*([^\W\d]|\\[a-z]+)\s*\}")
_BARE_DIGITS = (
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*(?=[\\{])"), r"\\frac{\1}"),
    (re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\d)"), r"\1{\2}"),
    (re.compile(r"(\\sqrt|[\^_])\s*(\d)"), r"\1{\2}"),
)
_PAUSE = re.compile(r"(?<!\d)[.,;:?]|[.,;:?](?!\d)")
_BLANK = re.compile(r"\s+")
_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?|[^\W\d_]")
_SIGNED_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?|[^\W\d_]|<=|>=|!=|[-+*·×∶/^=<>!|'#~]")
_SIGN = re.compile(r"<=|>=|!=|[-+*·×∶/^=<>!|'#~]")
_LETTER = re.compile(r"[^\W\d_]")
_SCRIPTS = {
    "ja": re.compile("[\u3040-\u30ff]"),
    "ko": re.compile("[\uac00-\ud7a3]"),
    "zh": re.compile("[\u3400-\u9fff\U00020000-\U0003ffff]"),
    "ru": re.compile("[\u0400-\u04ff]"),
}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def _plain(text: str) -> str:
    """Typesetting taken off; blanks and pauses still there."""
    text = _RAISED.sub(
        lambda m: ("^" if m[0][0] in "⁰¹²³⁴⁵⁶⁷⁸⁹" else "_") + f"{{{m[0]}}}", text.strip().translate(_SIGNS)
    )
    text = _HEADING.sub(" ", unicodedata.normalize("NFKC", text).translate(_SIGNS))
    text = _PRIME.sub("'", _QUOTED.sub(lambda match: f" {match[1] or match[2] or ''} ", text))
    text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1], f"\\{match[1]} "), _DROPPED.sub(" ", text))
    return _RATIO.sub("∶", text.casefold())


def normalise(text: str) -> str:
    r"""The text without case, blanks, pauses and what LaTeX adds for looks. Two equal results are one problem.

    >>> normalise("Find $\\dfrac{1}{2}+x$.") == normalise("find \\( \\frac12 + x \\)")
    True
    >>> normalise("$x^8+98$") == normalise("$x^8-98$"), normalise("1.5") == normalise("15")
    (False, False)
    """
    text = _LETTER_IN_BRACES.sub(r" \1", _plain(text))
    for pattern, braced in _BARE_DIGITS:
        text = pattern.sub(braced, text)
    return _BLANK.sub(lambda match: " " if _between_digits(match) else "", _PAUSE.sub(" ", text)).strip()


def _between_digits(blank: re.Match[str]) -> bool:
    start, end = blank.span()
    return start > 0 and end < len(blank.string) and blank.string[start - 1].isdigit() and blank.string[end].isdigit()


def words(text: str) -> list[str]:
    r"""Words of a text: runs of letters (LaTeX commands among them), numbers, single ideographs.

    >>> words(r"Find $\\frac{1}{2}$ of 1,000 units.")
    ['find', 'frac', '1', '2', 'of', '1000', 'units']
    """
    return _WORD.findall(_plain(text))


def signed_words(text: str) -> list[str]:
    """As `words`, with the signs of arithmetic and comparison among them.

    >>> signed_words("x^2 - 1 = 0")
    ['x', '^', '2', '-', '1', '=', '0']
    """
    return _SIGNED_WORD.findall(_plain(text))


def figures(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(numbers, signs) of a text, each in order: problems that differ in them are different problems.

    >>> figures("x^2 - 10 = 3")
    (('2', '10', '3'), ('^', '-', '='))
    """
    plain = _PAUSE.sub(" ", _plain(text))
    return tuple(_NUMBER.findall(plain)), tuple(_SIGN.findall(plain))


def grams(tokens: Sequence[str], n: int) -> set[tuple[str, ...]]:
    """The distinct runs of n tokens; empty where there are fewer.

    >>> sorted(grams(["a", "b", "c"], 2))
    [('a', 'b'), ('b', 'c')]
    """
    return {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}


def shingles(text: str, n: int = 3) -> set[tuple[str, ...]]:
    """What near-duplicates are measured on: runs of n signed words, or all of a text that has fewer."""
    tokens = signed_words(text)
    return grams(tokens, n) or {tuple(tokens)}


def key(text: str) -> int:
    """128-bit hash of a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=16).digest(), "big")


def language(text: str) -> str:
    """By script: zh, ja, ko, ru, else en (Latin letters are taken for English) or none (no letters).

    One letter in ten of another script decides: formulas are Latin in every language.

    >>> language("求 x 的值"), language("Find x"), language("2+2=?")
    ('zh', 'en', 'none')
    """
    letters = len(_LETTER.findall(text))
    if not letters:
        return "none"
    if not text.isascii():
        for name, script in _SCRIPTS.items():
            if 10 * len(script.findall(text)) >= letters:
                return name
    return "en"
