r"""One spelling for the many ways in which the same answer is typed.

`clean` takes a bare answer, as a person or a model writes it, and gives LaTeX in one spelling:
delimiters, sizes, spacing commands and emphasis gone, Unicode mathematics and plain-text operators
as commands, every text wrapper as \text{...}, every argument of \frac and \sqrt in braces. It
changes the spelling alone, never the value; whatever it does not know stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dapo.reward.spelling import CHARACTERS, COMMANDS, SHORT_TEXT, SUPERSCRIPTS

MAX_CHARACTERS = 10_000  # a longer answer is no answer

_SUPER_RUN = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]+")
_ROOT = re.compile("√\\s*(?:\\(([^()]*)\\)|(\\d+|[a-z]))")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_SPACING = re.compile(r"(?<!\\)\\[,;:> ]|~|\\\n|\\hspace\*?\{[^{}]*\}|\\phantom\{[^{}]*\}")
_TEXT_COMMANDS = "text|textbf|textit|textrm|textsf|texttt|textnormal|textup|emph|mbox|hbox"
_TEXT = re.compile(rf"\\(?:{_TEXT_COMMANDS})\s*\{{([^{{}}]*)\}}")
_FONT = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|mathcal|boldsymbol|bm|operatorname\*?|rm|bf|it)\s*\{([^{}]*)\}"
)
_SHOWN = re.compile(r"\\(?:boxed|fbox|underline|ensuremath|displaylines)\s*\{([^{}]*)\}")
_DELIMITERS = re.compile(r"\\\(|\\\)|\\\[|\\\]|(?<!\\)\$")
_HTML = re.compile(r"<(su[pb])>([^<>]*)</\1>", re.IGNORECASE)
_FRAC_BARE = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))\s*(?:\{([^{}]*)\}|([0-9a-zA-Z]))")
_SQRT_BARE = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*([0-9a-zA-Z])")
_SQRT_COMMAND = re.compile(r"\\sqrt\s*(\\(?!frac|sqrt|text|left|binom)[A-Za-z]+)")
_PERCENT = re.compile(r"\s*(?:\\?%|(?<![A-Za-z\\{])(?:percentage|percent|pct)(?![A-Za-z]))")
_PERCENT_TEXT = re.compile(r"\\text\{\s*(?:percentage|percent|pct)\s*\}", re.IGNORECASE)
_DEGREE = re.compile(
    r"\^\s*\\circ(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\\text\{\s*degrees?\s*\}"
    r"|(?<=[\d}]) *(?<![A-Za-z\\])degrees?(?![A-Za-z])"
)
_PLAIN_ROOT = re.compile(r"(?<![A-Za-z\\])sqrt\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+))")
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|ln|log|exp"
_PLAIN_FUNCTION = re.compile(rf"(?<![A-Za-z\\{{])({_FUNCTIONS})(?=\s*[(\d^_x\\])")
_PLAIN_WORDS = ((re.compile(r"(?<![A-Za-z\\{])(?:infinity|inf)(?![A-Za-z])"), r"\\infty "),
                (re.compile(r"(?<![A-Za-z\\{])pi(?![A-Za-z])"), r"\\pi "))  # fmt: skip
# LaTeX that went through one escaping too many: \\\\frac for \\frac.
_ESCAPED_TWICE = re.compile(
    r"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|left|right|pi|text|mathrm|boxed|fbox|leq?|geq?|neq?|in|cup|infty|pm|cdot|times"
    r"|bigg?|Bigg?|begin|end|circ|theta|alpha|beta|lambda|quad|log|ln|sin|cos|tan|mathbb|displaystyle|binom|cdots|ldots|angle|overline)(?![a-z]))"
)
_BLANKS = re.compile(r"\s{2,}")
_GROUP_COMMA = re.compile(r"\s*\{\s*,\s*\}\s*")
_EMPHASIS = re.compile(r"^(?:\*\*|__|`)+\s*|\s*(?:\*\*|__|`)+$")


def clean(text: str) -> str:
    r"""The answer in one LaTeX spelling. Linear in its length, up to MAX_CHARACTERS.

    >>> clean("$\\dfrac12$."), clean("**x ≤ 3**"), clean(r"\left( 10,\!080 \right)")
    ('\\frac{1}{2}', 'x \\le 3', '( 10,080 )')
    """
    text = _ESCAPED_TWICE.sub(r"\\", _unicode(text)).replace('\\"', " ").replace('"', " ")
    text = _GROUP_COMMA.sub(",", text.replace("\\!", "").replace("{,}", ","))
    text = _DELIMITERS.sub(" ", text)
    text = _HTML.sub(lambda m: ("^{" if m[1].lower() == "sup" else "_{") + m[2] + "}", text)
    text = text.replace("\\$", "\\text{dollar}").replace("\\cup dot", "\\cup ")
    text = _SPACING.sub(" ", text)
    text = _COMMAND.sub(lambda m: COMMANDS.get(m[1], m[0]), text)
    text = _wrappers(text)
    text = _plain(text)
    text = _PERCENT.sub(r"\\%", _PERCENT_TEXT.sub(r"\\%", text))
    text = _DEGREE.sub(r"^{\\circ}", text)
    return trim(_BLANKS.sub(" ", _braces(text)))


def trim(text: str) -> str:
    """Emphasis, trailing punctuation and outer blanks off."""
    previous = None
    while previous != text:
        previous = text
        text = _EMPHASIS.sub("", text.strip()).rstrip(".,;:?").strip()
        text = re.sub(r"(?<!\\)\\+$", "", text).strip()
    return text


def _unicode(text: str) -> str:
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] if m[1] is not None else m[2]}}}", text)
    text = _SUPER_RUN.sub(lambda m: "^{" + m[0].translate(SUPERSCRIPTS) + "}", text)
    return text.translate(CHARACTERS)


def _wrappers(text: str) -> str:
    """Font and text commands to bare mathematics or \\text{...}, from the inside out."""
    for _ in range(6):
        before = text
        text = _FONT.sub(_font, text)
        text = _TEXT.sub(_as_text, text)
        text = _SHOWN.sub(r" \1 ", text)
        if text == before:
            break
    return text.replace("\x02", "\\text{").replace("\x03", "}")


def _font(match: re.Match[str]) -> str:
    inner = match[1].strip()
    words = re.fullmatch(r"[A-Za-z][A-Za-z .]*[A-Za-z.]", inner)
    if inner in SHORT_TEXT or (words and len(inner) > 3):
        return f"\x02{match[1]}\x03"
    return f"\\{inner} " if re.fullmatch(_FUNCTIONS, inner) else f" {match[1]} " if words else match[1]


def _as_text(match: re.Match[str]) -> str:
    """Text that holds no letters is mathematics."""
    inner = match[1]
    if not re.search(r"[^\W\d_]", inner):
        return f" {inner} "
    if re.fullmatch(_FUNCTIONS, inner.strip()):
        return f"\\{inner.strip()} "
    return f"\x02{inner}\x03"


def _plain(text: str) -> str:
    """Mathematics typed without LaTeX."""
    text = text.replace("**", "^") if not _EMPHASIS.search(text.strip()) else text
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne ").replace("+/-", r"\pm ")
    text = _PLAIN_ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2] or m[3] or ''}}}", text)
    text = _PLAIN_FUNCTION.sub(r"\\\1", text)
    for pattern, command in _PLAIN_WORDS:
        text = pattern.sub(command, text)
    return re.sub(r"(?<=[\w)}])\s*\*\s*(?=[\w(\\])", r" \\cdot ", text)


def _argument(first: str | None, second: str | None) -> str:
    return first if first is not None else second or ""


def _braces(text: str) -> str:
    text = _SQRT_COMMAND.sub(r"\\sqrt{\1}", _SQRT_BARE.sub(r"\\sqrt\1{\2}", text))
    if "\\frac" not in text:
        return text
    replace: Callable[[re.Match[str]], str] = lambda m: (  # noqa: E731
        rf"\frac{{{_argument(m[1], m[2])}}}{{{_argument(m[3], m[4])}}}"
    )
    return _FRAC_BARE.sub(replace, text)
