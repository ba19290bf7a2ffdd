"""Generated answers: the integer against an oracle without sympy, and what no input may bring about.

The oracle reduces fractions with the standard library and takes squares out of roots by trial division;
it shares nothing with the code that it checks.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import gcd, isqrt

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dapo.data.integers import REASONS, Refusal, Rewrite, canonical_integer, rewrite
from dapo.data.integers.exact import exact
from dapo.data.integers.latex import LatexError, parse
from dapo.data.integers.llm import llm_rewrite

QUICK = settings(max_examples=150, deadline=None, derandomize=True)
FEW = settings(max_examples=60, deadline=None, derandomize=True)
PLAIN = "Evaluate the expression."

nonzero = st.integers(-60, 60).filter(bool)
positive = st.integers(1, 60)


def reduced_root(radicand: int) -> tuple[int, int]:
    """(s, c) with radicand = s^2 c, c squarefree."""
    for factor in range(isqrt(radicand), 0, -1):
        if radicand % (factor * factor) == 0:
            return factor, radicand // (factor * factor)
    raise AssertionError


def tokens(text: str) -> set[int]:
    """Every run of digits, and every English word up to twelve."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    found = {int(run) for run in re.findall("[0-9]+", text)}
    return found | {at for at, word in enumerate(words) if re.search(rf"\b{word}\b", text, re.I)}


def sound(result: object, expected: list[int], letters: int) -> None:
    """A rewrite asks for a weighted sum of the expected parameters, and its prompt does not have it."""
    assert isinstance(result, Rewrite), result
    assert list(result.proof["parameters"].values()) == expected
    terms = result.proof["target"].split("+")
    assert len(terms) == letters
    weights = [int(re.sub(r"\D", "", term) or 1) for term in terms]
    assert int(result.answer) == sum(w * p for w, p in zip(weights, expected, strict=True))
    assert abs(int(result.answer)) not in tokens(result.problem)
    assert rewrite(result.problem, result.answer) is None
    json.dumps(result.proof)


@QUICK
@given(nonzero, st.integers(2, 60), st.integers(1, 9))
def test_fractions(above: int, below: int, scale: int) -> None:
    """Any multiple of a fraction gives numerator plus denominator in lowest terms."""
    value = Fraction(above, below)
    assume(value.denominator > 1)
    result = rewrite(PLAIN, rf"\frac{{{scale * above}}}{{{scale * below}}}")
    sound(result, [abs(value.numerator), value.denominator], 2)
    assert isinstance(result, Rewrite)
    assert result.proof["template"].startswith("-") is (value < 0)


@QUICK
@given(st.integers(-60, 60), nonzero, st.integers(2, 90), positive, st.integers(1, 5))
def test_surds(a: int, b: int, c: int, d: int, scale: int) -> None:
    """(a + b sqrt c)/d, however it is scaled, has the parameters that trial division gives."""
    square, root = reduced_root(c)
    assume(root > 1)
    common = gcd(gcd(a, b * square), d)
    expected = [abs(a) // common] if a else []
    expected += [abs(b) * square // common, root] + ([d // common] if d > common else [])
    text = rf"\frac{{{a * scale} + ({b})\sqrt{{{c * scale * scale}}}}}{{{d * scale}}}"
    sound(rewrite(PLAIN, text), expected, len(expected))


@FEW
@given(nonzero, nonzero, st.integers(2, 60))
def test_rationalised_denominators(a: int, b: int, c: int) -> None:
    """1/(a + b sqrt c) = (a - b sqrt c)/(a^2 - b^2 c) gives the same either way it is written."""
    assume(reduced_root(c)[1] > 1)
    one = rewrite(PLAIN, rf"\frac{{1}}{{{a}+({b})\sqrt{{{c}}}}}")
    other = rewrite(PLAIN, rf"\frac{{{a}-({b})\sqrt{{{c}}}}}{{{a * a - b * b * c}}}")
    assert isinstance(one, Rewrite)
    assert isinstance(other, Rewrite)
    assert (one.answer, one.problem) == (other.answer, other.problem)


@FEW
@given(st.integers(-30, 30), nonzero, positive, st.sampled_from([r"\pi", "i"]))
def test_pi_and_complex(a: int, b: int, d: int, unit: str) -> None:
    """(a + b u)/d for the units pi and i."""
    common = gcd(gcd(a, b), d)
    expected = ([abs(a) // common] if a else []) + [abs(b) // common] + ([d // common] if d > common else [])
    text = rf"\frac{{{a}+({b}){unit}}}{{{d}}}"
    result = rewrite(PLAIN, text)
    if len(expected) == 1 and isinstance(result, Refusal):
        assert result.reason == "leaks"  # a single letter has few weights
        return
    sound(result, expected, len(expected))


@FEW
@given(st.decimals(-500, 500, places=2), st.sampled_from(["{}", r"\${}", r"{}\%", r"{}^\circ", r"{}\text{{ cm}}"]))
def test_decimals(value: object, shape: str) -> None:
    """A hundred times the number, whatever goes with it."""
    number = str(value)
    whole = int(number.replace(".", ""))
    answer = shape.format(number)
    result = rewrite(PLAIN, answer)
    if result is None:
        assert shape == "{}"
        assert whole % 100 == 0
    elif isinstance(result, Rewrite):
        assert int(result.answer) == whole
        assert abs(whole) not in tokens(result.problem)
    else:
        assert result.reason == ("lossy" if whole == 0 else "leaks")


@FEW
@given(st.lists(st.fractions(-9, 9, max_denominator=9), min_size=3, max_size=5))
def test_tuples(values: list[Fraction]) -> None:
    """The sum counts integers with their sign, and of fractions numerator and denominator."""
    assume(any(values))
    expected = []
    for value in values:
        whole = value.denominator == 1
        expected += [value.numerator] if whole else [abs(value.numerator), value.denominator]
    text = "(" + ", ".join(f"{value.numerator}/{value.denominator}" for value in values) + ")"
    result = rewrite(PLAIN, text)
    if result == Refusal(reason="lossy"):
        return
    sound(result, expected, len(expected))


@FEW
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=6), st.integers(-9, 9))
def test_polynomials(coefficients: list[int], constant: int) -> None:
    """The value at the place the sentence names, by Horner's rule."""
    terms = [f"({c})x^{{{power}}}" for power, c in enumerate(coefficients, start=1)]
    result = rewrite("Expand it in $x$.", f"{constant}+" + "+".join(terms))
    if isinstance(result, Rewrite):
        point = result.proof["parameters"]["x"]
        assert int(result.answer) == constant + sum(c * point**p for p, c in enumerate(coefficients, start=1))
        assert abs(int(result.answer)) not in tokens(result.problem)
    elif isinstance(result, Refusal):
        assert result.reason in ("leaks", "too_large", "variables")


@FEW
@given(st.integers(1, 9999), st.integers(2, 10))
def test_bases(value: int, base: int) -> None:
    """The digits as they stand, or the value where they are no good."""
    digits, rest = "", value
    while rest:
        digits, rest = str(rest % base) + digits, rest // base
    result = rewrite(PLAIN, f"{digits}_{{{base}}}")
    if isinstance(result, Rewrite):
        assert int(result.answer) in (int(digits), value)
        assert int(result.answer) not in tokens(result.problem)
    else:
        assert result in (Refusal(reason="leaks"), Refusal(reason="too_large"))


PIECES = r"""\frac \sqrt \pi \text{ \pm \infty \, \! \left( \right) \begin{pmatrix} \end{pmatrix} \\ ^\circ \% \$ \cdot
\boxed{ sqrt \ln \theta \{ \} \frac{1}{2} and or"""
CHARACTERS = "0123456789+-*/^_(){}[],.;:!=<>%$&xnie \\'±∞π−²\x00\ud800三"
ALPHABET = st.sampled_from([*CHARACTERS, *PIECES.split(), " and "])
anything = st.one_of(st.text(max_size=40), st.lists(ALPHABET, max_size=25).map("".join))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(anything, anything)
@example("", "")
@example("x", "\\")
@example("(1)", "_{}")
def test_no_text_raises(problem: str, answer: str) -> None:
    """Whatever comes in, a rewrite that holds, a refusal that has a reason, or an integer comes out."""
    result = rewrite(problem, answer)
    if result is None:
        assert re.fullmatch("-?[0-9]+", canonical_integer(answer) or "")
    elif isinstance(result, Rewrite):
        assert result.problem.startswith(problem + "\n\n")
        assert abs(int(result.answer)) < 10**6
        assert abs(int(result.answer)) not in tokens(result.problem)
        assert rewrite(result.problem, result.answer) is None
        json.dumps(result.proof)
    else:
        assert result.reason in REASONS
    assert rewrite(problem, answer) == result


@QUICK
@given(anything, anything)
def test_no_reply_raises(answer: str, reply: str) -> None:
    """Nor does any reply of a model."""
    told = json.dumps({"sentence": f"Give $k$ of {reply}.", "form": reply, "parameters": {"k": 1}, "target": "k"})
    for text in (reply, told):
        assert isinstance(llm_rewrite(PLAIN, answer, lambda prompt, text=text: text), Rewrite | Refusal)  # type: ignore[misc]


@QUICK
@given(st.lists(ALPHABET, max_size=15).map("".join))
def test_the_exact_value_agrees_with_sympy(text: str) -> None:
    """Where the reader reads a number, its terms add up to what sympy evaluates it to."""
    try:
        value = parse(text)
        number = exact(value)
    except LatexError:
        return
    total = 0j
    for unit, part in number.items():
        total += float(part) * unit.root**0.5 * 3.141592653589793**unit.pi * (1j if unit.imaginary else 1)
    assert abs(total - complex(value)) <= 1e-9 * max(1, abs(total))
