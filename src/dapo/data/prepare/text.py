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
    r"|\\[,;:! ()\[\]]|\$|~|``|''|[\"“”„«»]|&nbsp;"
)
_COMMANDS = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "leq": "<=", "leqslant": "<=", "le": "<=",
    "geq": ">=", "geqslant": ">=", "ge": ">=", "neq": "!=", "ne": "!=", "cdot": "*", "times": "*", "div": "/",
    "ldots": "...", "cdots": "...", "dots": "...", "dotsc": "...", "text": "", "mathrm": "", "textbf": "", "mathbf": "",
    "operatorname": "", "lvert": "|", "rvert": "|", "vert": "|", "lbrace": r"\{", "rbrace": r"\}",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)\s*")
_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "≤": "<=", "≥": ">=", "≠": "!=", "…": "...",
     "’": "'", "‘": "'", "。": ".", "、": ",", "π": r"\pi", "∠": r"\angle", "△": r"\triangle", "√": r"\sqrt"}
)  # fmt: skip
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\{,\}|,)\\?!?\d{3})+(?![\d,])")
_ONE_IN_BRACES = re.compile(r"(?<!\\)\{\s*(\w|\\[a-z]+)\s*\}")
_PAUSE = re.compile(r"(?<!\d)[.,;:?#]|[.,;:?#](?!\d)|(?<![\w)\]}])'|'(?=\s|$)")
_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?|[^\W\d_]")
_SIGNED_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?|[^\W\d_]|<=|>=|!=|[-+*/^=<>!|']")
_SIGN = re.compile(r"<=|>=|!=|[-+*/^=<>!|']")
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
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1], f"\\{match[1]} "), _DROPPED.sub(" ", text))
    return text.casefold()


def normalise(text: str) -> str:
    r"""The text without case, blanks, pauses and what LaTeX adds for looks. Two equal results are one problem.

    >>> normalise("Find $\\dfrac{1}{2}+x$.") == normalise("find \\( \\frac12 + x \\)")
    True
    >>> normalise("$x^8+98$") == normalise("$x^8-98$"), normalise("1.5") == normalise("15")
    (False, False)
    """
    text = _ONE_IN_BRACES.sub(r" \1", _plain(text))
    return "".join(_PAUSE.sub("", text).split())


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
