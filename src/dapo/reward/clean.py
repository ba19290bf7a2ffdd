r"""One spelling for the many ways in which the same answer is typed.

`clean` takes a bare answer, as a person or a model writes it, and gives LaTeX in one spelling:
delimiters, sizes, spacing commands and emphasis gone, Unicode mathematics and plain-text operators
as commands, every text wrapper as \text{...}, every argument of \frac and \sqrt in braces. It
changes the spelling alone, never the value; whatever it does not know stays as it was.
"""

from __future__ import annotations

import re

from dapo.reward.spelling import CHARACTERS, COMMANDS, SHORT_TEXT, SUPERSCRIPTS

MAX_CHARACTERS = 10_000  # a longer answer is no answer
MAX_FORMULA = 3_000  # of an answer that is not digits alone

_SUPER_RUN = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]+")
_ROOT = re.compile("([√∛]) ?(?:\\(([^()]*)\\)|(\\d+|[a-z]))")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_SPACING = re.compile(r"(?<!\\)\\[,;:> ]|~|\\hspace\*?\{[^{}]*\}|\\phantom\{[^{}]*\}|\\color\{[^{}]*\}")
_TEXT_COMMANDS = "text|textbf|textit|textrm|textsf|texttt|textnormal|textup|emph|mbox|hbox"
_TEXT = re.compile(rf"\\(?:{_TEXT_COMMANDS}) ?\{{([^{{}}]*)\}}")
_FONT = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|mathcal|boldsymbol|bm|operatorname\*?) ?(?:\{([^{}]*)\}|([A-Za-z0-9]))"
)
_SHOWN = re.compile(r"\\(?:boxed|fbox|underline|ensuremath|displaylines|textcolor ?\{[^{}]*\}) ?\{([^{}]*)\}")
_DELIMITERS = re.compile(r"\\\(|\\\)|\\\[|\\\]|(?<!\\)\$")
_HTML = re.compile(r"<(su[pb])>([^<>]*)</\1>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>=]{0,30}/?>")
_LAYOUT = re.compile(r"\\(?:begin|end)\{(?:aligned|align\*?|gathered|equation\*?|split|multline\*?)\}")
_CASES = re.compile(r"\\begin\{cases\}([^&]*?)\\end\{cases\}")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}")
_OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}")
_FRAC = re.compile(r"\\frac(?![A-Za-z])")
_ARGUMENT = re.compile(r" ?(\\[A-Za-z]+|[0-9a-zA-Z])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SQRT_BARE = re.compile(r"\\sqrt ?(\[[^\[\]]*\])? ?([0-9a-zA-Z])")
_SQRT_COMMAND = re.compile(r"\\sqrt ?(\\(?!frac|sqrt|text|left|binom)[A-Za-z]+)")
_PERCENT = re.compile(r" ?(?:\\?%|(?<![A-Za-z\\{])(?:percentage|percent|pct)(?![A-Za-z]))")
_PERCENT_TEXT = re.compile(r"\\text\{ ?(?:percentage|percent|pct) ?\}", re.IGNORECASE)
_DEGREE = re.compile(
    r" ?\^ ?\\circ(?![A-Za-z])| ?\^ ?\{ ?\\circ ?\}| ?\\text\{ ?deg(?:rees?)? ?\}"
    r"|(?<=[\d}]) ?(?<![A-Za-z\\])deg(?:rees?)?(?![A-Za-z])|(?<=\d)\^\{?o\}?(?![A-Za-z])"
)
_CELSIUS = re.compile(r"\^\{\\circ\} ?(?:\\text\{ ?([CF]) ?\}|([CF])(?![A-Za-z]))")
_PLAIN_ROOT = re.compile(r"(?<![A-Za-z\\])sqrt ?(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+))")
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|ln|log|exp"
_PLAIN_FUNCTION = re.compile(rf"(?<![A-Za-z\\{{])({_FUNCTIONS})(?= ?[(\d^_x\\])")
_PLAIN_WORDS = ((re.compile(r"(?<![A-Za-z\\{])(?:infinity|inf|oo)(?![A-Za-z])"), r"\\infty "),
                (re.compile(r"(?<![A-Za-z\\{])pi(?![A-Za-z])"), r"\\pi "))  # fmt: skip
# LaTeX that went through one escaping too many: \\\\frac for \\frac.
_ESCAPED_TWICE = re.compile(
    r"(?<!\\)\\\\(?=(?:[dt]?frac|sqrt|left|right|pi|text|mathrm|boxed|fbox|leq?|geq?|neq?|in|cup|infty|pm|cdot|times"
    r"|bigg?|Bigg?|begin|end|circ|theta|alpha|beta|lambda|quad|log|ln|sin|cos|tan|mathbb|displaystyle|binom|cdots"
    r"|ldots|angle|overline)(?![a-z]))"
)
_INVISIBLE_BRACKET = re.compile(r"\\(?:left|right) ?\.")
_GROUP_COMMA = re.compile(r" ?\{ ?, ?\} ?")
_STARS = re.compile(r"(?<=[\w)}])\*\*(?=[\w({\\])")
_TIMES = re.compile(r"(?<=[\w)}]) ?\* ?(?=[\w(\\])")
_OPENING, _ENDING = frozenset(" ,;:=`"), frozenset(" .,;:?`")


def clean(text: str) -> str:
    r"""The answer in one LaTeX spelling. Linear in its length, up to MAX_CHARACTERS.

    >>> clean("$\\dfrac12$."), clean("**x ≤ 3**"), clean(r"\left( 10,\!080 \right)")
    ('\\frac{1}{2}', 'x \\le 3', '( 10,080 )')
    """
    text = _ESCAPED_TWICE.sub(r"\\", _unicode(text)).replace('\\"', " ").replace('"', " ").replace("...", "\\ldots ")
    text = _GROUP_COMMA.sub(
        ",", _INVISIBLE_BRACKET.sub("", text.replace("\\!", "")).replace("\\text{,}", ",").replace("{,}", ",")
    )
    text = _HTML.sub(lambda m: ("^{" if m[1].lower() == "sup" else "_{") + m[2] + "}", text)
    text = _squash(_TAG.sub(" ", _DELIMITERS.sub(" ", text)))
    text = _layout(text.replace("\\$", "\\text{dollar}"))
    text = _COMMAND.sub(lambda m: COMMANDS.get(m[1], m[0]), _SPACING.sub(" ", text))
    text = _squash(_wrappers(_squash(text)))
    text = _plain(trim(text))
    text = _PERCENT.sub(r"\\%", _PERCENT_TEXT.sub(r"\\%", text))
    text = _CELSIUS.sub(
        lambda m: f"\\text{{{'celsius' if 'C' in m[0] else 'fahrenheit'}}}", _DEGREE.sub(r"^{\\circ}", text)
    )
    return trim(_squash(_braces(text)))


def too_long(text: str) -> bool:
    """Whether this can't be an answer: digits may go on for longer than formulas."""
    return len(text) > (
        MAX_CHARACTERS if re.fullmatch(r"[-+\d.,/\\fracoverline{}$ ]*", text[: MAX_CHARACTERS + 1]) else MAX_FORMULA
    )


def trim(text: str) -> str:
    """Emphasis, trailing punctuation and outer blanks off, in one pass from either end."""
    start, end = 0, len(text)
    while start < end and (
        text[start] in _OPENING
        or (text[start] in "*_" and (text[start : start + 2] in ("**", "__") or text[end - 1] == text[start]))
    ):
        start += 1
    while start < end:
        last = text[end - 1]
        if last in _ENDING or (last in "*_" and not text[start:end].endswith(("^*", "_*"))) or last == "\\":
            end -= 1
        else:
            break
    return text[start:end]


def _squash(text: str) -> str:
    """Single blanks alone: every pattern here may then be linear."""
    return " ".join(text.split())


def _unicode(text: str) -> str:
    text = _ROOT.sub(lambda m: rf"\sqrt{'[3]' if m[1] == '∛' else ''}{{{m[2] if m[2] is not None else m[3]}}}", text)
    text = _SUPER_RUN.sub(lambda m: "^{" + m[0].translate(SUPERSCRIPTS) + "}", text)
    return _squash(text.translate(CHARACTERS))


def _layout(text: str) -> str:
    """Environments that only lay out, fractions by \\over."""
    if "\\choose" in text:
        text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    if "\\over" in text:
        text = _OVER.sub(r"\\frac{\1}{\2}", text)
    if "\\begin" not in text:
        return text
    text = _CASES.sub(lambda m: m[1].replace("\\\\", ", "), text)
    without = _LAYOUT.sub(" ", text)
    return without if without == text else without.replace("&", " ").replace("\\\\", " ")


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
    whole = match[1] if match[1] is not None else match[2]
    inner = whole.strip()
    words = re.fullmatch(r"[A-Za-z][A-Za-z .]*[A-Za-z.]", inner)
    if inner in SHORT_TEXT or (words and len(inner) > 3):
        return f"\x02{whole}\x03"
    return f"\\{inner} " if re.fullmatch(_FUNCTIONS, inner) else f" {whole} "


def _as_text(match: re.Match[str]) -> str:
    """Text that holds no words, or a number or a relation, is mathematics."""
    inner = match[1]
    bare = inner.strip()
    if not re.search(r"[^\W\d_]", inner) or bare in ("i", "e"):
        return inner
    if re.fullmatch(_FUNCTIONS, bare):
        return f"\\{bare} "
    if re.match(r"[-+(]?\d|[A-Z]+\d", bare) or re.search(r"[=<>]", bare):
        return f" {inner} "
    return f"\x02{inner}\x03"


def _plain(text: str) -> str:
    """Mathematics typed without LaTeX."""
    text = _STARS.sub("^", text).replace("**", " ")
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne ").replace("+/-", r"\pm ")
    text = _PLAIN_ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2] or m[3] or ''}}}", text)
    text = _PLAIN_FUNCTION.sub(r"\\\1", text)
    for pattern, command in _PLAIN_WORDS:
        text = pattern.sub(command, text)
    return _TIMES.sub(r" \\cdot ", text)


def _braces(text: str) -> str:
    """Every argument of \\frac and \\sqrt in braces."""
    text = _SQRT_COMMAND.sub(r"\\sqrt{\1}", _SQRT_BARE.sub(r"\\sqrt\1{\2}", text))
    if "\\frac" not in text:
        return text
    closing = matching_braces(text)
    opened, closed = set(), set()
    for match in _FRAC.finditer(text):
        place = match.end()
        for _ in range(2):
            bare = _ARGUMENT.match(text, place)
            if bare:
                opened.add(bare.start(1))
                closed.add(bare.end())
                place = bare.end()
            else:
                brace = text.find("{", place, place + 2)
                if brace < 0 or brace not in closing:
                    break
                place = closing[brace] + 1
    return "".join(
        ("}" if i in closed else "") + ("{" if i in opened else "") + char for i, char in enumerate(text + "\0")
    )[:-1]


def matching_braces(text: str) -> dict[int, int]:
    """Where each brace closes, escaped ones left out; one pass."""
    found: dict[int, int] = {}
    stack: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            stack.append(match.start())
        elif match[0] == "}" and stack:
            found[stack.pop()] = match.start()
    return found
