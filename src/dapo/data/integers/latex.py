"""A small strict reader of LaTeX answers: text in, one sympy expression out, or a typed refusal.

Recursive descent over the characters; nothing is ever handed to sympy as text. What a text
may cost is settled before it is spent: the length, every integer, every exponent, every radicand
and the nesting are bounded, so that `9^{9^{9^9}}` is refused and not computed.

    sum      ::= product (("+" | "-") product)*
    product  ::= signed (("*" | "/" | "\\cdot" | "\\times" | "\\div" | nothing) signed)*
    signed   ::= ("+" | "-")* power
    power    ::= atom ("^" argument)?
    atom     ::= number | letter | "\\pi" | "(" sum ")" | "{" sum "}" | fraction | root

Two readings that people do not agree on are refused as `ambiguous`: digits without braces after
`\\sqrt` or `^` that are more than a single digit (`2^10` is 2¹0 to TeX), and a factor that stands
behind a slash without a sign (`1/2x`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import sympy

from .bounded import MAX_EXPONENT, LatexError, divide, logarithm, number, raise_to

MAX_LENGTH = 300
MAX_DEPTH = 30


def words(text: str) -> frozenset[str]:
    """The words of a text, to look names up in."""
    return frozenset(text.split())


GREEK = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma tau "
    "phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"
)
FUNCTIONS = words(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp binom dbinom tbinom sum prod int "
    "lim max min gcd det lfloor rfloor lceil rceil overline mathbb mathcal mathbf operatorname Gamma Re Im "
    "dots ldots cdots prime hat vec bar bmod pmod mod"
)
_SPACING = re.compile(r"\\[,!;: ]|\\(?:q?quad|displaystyle|left|right|bigg?|Bigg?|limits|thinspace)(?![A-Za-z])|~|\s+")
_SAFE_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,\\!|\{,\}\s*|,(?=0))\s*\d{3})+(?![\d,])")
_TRANSLATED = str.maketrans(
    {"−": "-", "–": "-", "π": "\\pi ", "×": "\\times ", "·": "\\cdot ", "÷": "\\div ", "°": "^\\circ ", " ": " "}
)
_LOGS = ("ln", "log")
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+", re.ASCII)
_COMMAND = re.compile(r"\\([A-Za-z]+)")


def parse(text: str, bindings: Mapping[str, int] | None = None, *, extended: bool = False) -> sympy.Expr:
    """The expression a LaTeX text stands for, exactly.

    Args:
        text: Up to 300 characters; decimals are read as exact fractions.
        bindings: Values of single letters, so that a form can be read with its parameters in place.
        extended: Read `e`, `\\ln` and `\\log` of positive rationals and higher roots too.

    Raises:
        LatexError: With the reason.
    """
    if len(text) > MAX_LENGTH:
        raise LatexError("too_long")
    text = text.translate(_TRANSLATED)
    if not text.isascii():
        raise LatexError("unreadable")
    text = _SAFE_THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    # A space stays where it ends a command's name; two numbers must not run together either.
    text = _SPACING.sub(" ", text).strip()
    return _Reader(text, bindings or {}, extended).whole()


class _Reader:
    """One pass over one text."""

    def __init__(self, text: str, bindings: Mapping[str, int], extended: bool) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.bindings = bindings
        self.extended = extended

    def whole(self) -> sympy.Expr:
        """The text from its first character to its last."""
        value = self.sum()
        if self.peek():
            raise LatexError(self.complaint())
        return value

    def complaint(self) -> str:
        """Why the character here can't go on an expression."""
        if self.peek() == "\\":
            return self.unknown(self.command())
        if self.peek() in "=<>":
            return "equation"
        return "ambiguous_comma" if self.peek() == "," else "unreadable"

    @staticmethod
    def unknown(name: str) -> str:
        """Why a command is none of ours."""
        if name in ("pm", "mp"):
            return "plus_minus"
        if name == "infty":
            return "infinite"
        if name in ("text", "textbf", "mathrm", "mbox", "textrm"):
            return "prose"
        if name in ("approx", "dots", "ldots", "cdots"):
            return "lossy"
        if name in ("leq", "geq", "le", "ge", "neq", "ne", "equiv", "in", "geqslant", "leqslant"):
            return "equation"
        if name in ("cup", "cap", "setminus"):
            return "interval"
        return "unsupported" if name in FUNCTIONS else "unreadable"

    def peek(self) -> str:
        """The next character that is no space, "" at the end."""
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, wanted: str) -> None:
        """Step over one character that must stand here."""
        if self.peek() != wanted:
            raise LatexError(self.complaint() if self.peek() else "unreadable")
        self.at += 1

    def command(self) -> str:
        """The name of the command here, "" if none stands here; does not step over it."""
        self.peek()
        match = _COMMAND.match(self.text, self.at)
        return match[1] if match else ""

    def skip(self, name: str) -> None:
        """Step over a command's backslash and name."""
        self.at += len(name) + 1

    def sum(self) -> sympy.Expr:
        """Products added and subtracted; every bracket comes through here, so the depth is counted here."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise LatexError("unreadable")
        value = self.product()
        while self.peek() and self.peek() in "+-":
            sign = self.text[self.at]
            self.at += 1
            value = value + self.product() if sign == "+" else value - self.product()
        self.depth -= 1
        return value

    def product(self) -> sympy.Expr:
        """Factors with and without a sign between them."""
        start = self.at
        value = self.signed()
        mixed = self.mixed(start, value)
        value = value if mixed is None else mixed
        slashed = False
        while True:
            operator = self.operator()
            if operator == "*":
                value = value * self.signed()
            elif operator == "/":
                value = divide(value, self.signed())
            elif self.starts_factor():
                if slashed or mixed is not None:
                    raise LatexError("ambiguous")
                value = value * self.power()
            else:
                return value
            slashed = operator == "/"

    def mixed(self, start: int, whole: sympy.Expr) -> sympy.Expr | None:
        """`2\\frac{1}{3}`: an integer with a proper fraction behind it is their sum, None if none stands here."""
        plain = re.fullmatch(r"\s*-?\s*\d+\s*", self.text[start : self.at])
        if not plain or self.command() not in ("frac", "dfrac", "tfrac"):
            return None
        before = self.at
        part = self.power()
        literal = re.fullmatch(
            r"\\[dt]?frac\s*(?:\d\s*\d|\{\s*\d+\s*\}\s*\{?\s*\d+\s*\}?)", self.text[before : self.at]
        )
        if not literal:
            self.at = before
            return None
        if not 0 < part < 1 or whole == 0:
            raise LatexError("ambiguous")
        return whole - part if self.text[start : self.at].lstrip().startswith("-") else whole + part

    def operator(self) -> str:
        """Step over a sign of multiplication or division: "*", "/", or "" if none stands here."""
        here = self.peek()
        if here and here in "*/":
            self.at += 1
            return here
        name = self.command()
        if name in ("cdot", "times", "div", "ast"):
            self.skip(name)
            return "/" if name == "div" else "*"
        return ""

    def starts_factor(self) -> bool:
        """Whether a factor stands here without a sign before it; a bare number never does."""
        here = self.peek()
        if here.isalpha() or (here and here in "({"):
            return True
        name = self.command()
        return name in ("frac", "dfrac", "tfrac", "sqrt", "pi") or name in GREEK or (self.extended and name in _LOGS)

    def signed(self) -> sympy.Expr:
        """A power with signs before it."""
        negative = False
        while self.peek() and self.peek() in "+-":
            negative ^= self.text[self.at] == "-"
            self.at += 1
        value = self.power()
        return -value if negative else value

    def power(self) -> sympy.Expr:
        """An atom and at most one exponent."""
        base = self.atom()
        if self.peek() != "^":
            if self.peek() in ("!", "'"):
                raise LatexError("unsupported")
            return base
        self.at += 1
        value = raise_to(base, self.argument(), self.extended)
        if self.peek() and self.peek() in "^!'":
            raise LatexError("unreadable")
        return value

    def atom(self) -> sympy.Expr:
        """A number, a letter, a bracket, a fraction or a root."""
        here = self.peek()
        match = _NUMBER.match(self.text, self.at)
        if match:
            self.at = match.end()
            return number(match[0])
        if here and here in "({":
            self.at += 1
            value = self.sum()
            self.take(")" if here == "(" else "}")
            return value
        if here.isalpha():
            self.at += 1
            return self.letter(here)
        name = self.command()
        if not name:
            raise LatexError(self.complaint() if here else "unreadable")
        return self.atom_command(name)

    def atom_command(self, name: str) -> sympy.Expr:
        """The value of a command and its arguments."""
        if name in ("frac", "dfrac", "tfrac"):
            self.skip(name)
            above = self.argument(first=True)
            return divide(above, self.argument())
        if name == "sqrt":
            self.skip(name)
            return self.root()
        if name == "pi":
            self.skip(name)
            return sympy.pi
        if self.extended and name in _LOGS:
            self.skip(name)
            return logarithm(self.argument() if self.peek() in ("{", "(") else self.power())
        if name in GREEK:
            self.skip(name)
            return sympy.Symbol("\\" + name)
        raise LatexError(self.unknown(name))

    def root(self) -> sympy.Expr:
        """What follows `\\sqrt`: an optional index in square brackets and the radicand."""
        index: sympy.Expr = sympy.Integer(2)
        if self.peek() == "[":
            self.at += 1
            index = self.sum()
            self.take("]")
        if not (index.is_Integer and 2 <= index <= MAX_EXPONENT):
            raise LatexError("unsupported")
        return raise_to(self.argument(), sympy.Rational(1, index), self.extended)

    def argument(self, *, first: bool = False) -> sympy.Expr:
        """One argument as TeX takes it: a group, a single digit, a letter or a command.

        Args:
            first: More digits may follow at once, as in `\\frac12`.
        """
        here = self.peek()
        if here in tuple("0123456789"):
            self.at += 1
            if not first and re.match(r"[\d.]", self.text[self.at :][:1]):
                raise LatexError("ambiguous")
            return sympy.Integer(int(here))
        if here == "-":  # `x^-1`: TeX would raise the minus alone
            raise LatexError("ambiguous")
        return self.atom()

    def letter(self, name: str) -> sympy.Expr:
        """What a single letter stands for; `O(2)` and `f(2)` are no products."""
        if name in self.bindings:
            return sympy.Integer(self.bindings[name])
        if self.peek() == "(" and (name.isupper() or re.match(r"\(\s*-?\d*\s*\)", self.text[self.at :])):
            raise LatexError("ambiguous")
        if name == "i":
            return sympy.I
        if name == "e":
            if not self.extended:
                raise LatexError("unsupported")
            return sympy.E
        return sympy.Symbol(name)
