"""Answers that are no integers, rewritten into integers: golden cases, every refusal, leaks, Chinese, hostile input."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dapo.data.integers import FAMILIES, REASONS, Refusal, Rewrite, canonical_integer, rewrite
from dapo.data.integers.check import accept
from dapo.data.integers.evidence import free_letters, is_chinese, stands_in
from dapo.data.integers.forms import Refused, Target
from dapo.data.integers.latex import LatexError, parse
from dapo.data.integers.llm import LLM_MAY_TRY, llm_rewrite
from dapo.data.integers.numeric import numeric_form

PLAIN = "Evaluate the expression."
DATA = Path(__file__).parents[2] / "shared" / "data"


def done(answer: str, problem: str = PLAIN, language: str | None = None) -> Rewrite:
    """The rewrite, where there must be one."""
    result = rewrite(problem, answer, language)
    assert isinstance(result, Rewrite), (answer, result)
    return result


def added(result: Rewrite) -> str:
    """The sentences below the problem."""
    return result.problem.rsplit("\n\n", 1)[1]


@pytest.mark.parametrize(
    ("answer", "form", "integer", "template"),
    [
        (r"\frac{3}{7}", "fraction", 10, r"\frac{k}{m}"),  # 3 + 7
        (r"\frac{6}{14}", "fraction", 10, r"\frac{k}{m}"),  # lowest terms first
        (r"-\frac{11}{2}", "fraction", 13, r"-\frac{k}{m}"),  # the sign is in the form: 11 + 2
        (r"\frac12", "fraction", 3, r"\frac{k}{m}"),
        (r"\frac 1{2}", "fraction", 3, r"\frac{k}{m}"),
        (r"\dfrac{1}2", "fraction", 3, r"\frac{k}{m}"),
        (r"$\frac{-1}{1997}$", "fraction", 1998, r"-\frac{k}{m}"),
        (r"1\frac{2}{3}", "fraction", 8, r"\frac{k}{m}"),  # 5/3
        (r"-1\frac{2}{3}", "fraction", 8, r"-\frac{k}{m}"),
        ("3/4", "fraction", 7, r"\frac{k}{m}"),
        (r"\frac{3}{8}\text{ mile}", "fraction", 11, r"\frac{k}{m}"),
        (r"33\frac{1}{3}\%", "fraction", 103, r"\frac{k}{m}"),  # 100/3 percent
        ("82.50", "decimal", 8250, r"\frac{k}{10^{2}}"),  # trailing zeros count
        ("-.5", "decimal", -5, r"\frac{k}{10^{1}}"),
        (r"\$1.65", "unit", 165, r"\frac{k}{10^{2}}"),
        (r"\$23{,}000", "unit", 23000, "k"),
        (r"21\text{ dogs}", "unit", 21, "k"),
        (r"22.5^{\circ}", "unit", 225, r"\frac{k}{10^{1}}"),
        (r"10,\!080 \text{ cm}^2", "unit", 10080, "k"),
        (r"25\%", "percent", 25, "k"),
        (r"12.5\%", "percent", 125, r"\frac{k}{10^{1}}"),
        (r"11-2\sqrt{6}", "surd", 19, r"k-m\sqrt{n}"),  # 11 + 2 + 6
        (r"11-1\sqrt{24}", "surd", 19, r"k-m\sqrt{n}"),  # not 36, as 4 divides 24
        (r"\sqrt{8}", "surd", 4, r"k\sqrt{m}"),  # 2 sqrt 2
        (r"\frac{1}{\sqrt2+1}", "surd", 4, r"-k+m\sqrt{n}"),  # -1 + sqrt 2
        (r"\frac{\sqrt{3}}{\sqrt{5}}", "surd", 21, r"\frac{k\sqrt{m}}{n}"),  # sqrt 15 / 5
        (r"\sqrt{\frac{2}{3}}", "surd", 10, r"\frac{k\sqrt{m}}{n}"),  # sqrt 6 / 3
        (r"\sqrt{3+2\sqrt{2}}", "surd", 4, r"k+m\sqrt{n}"),  # 1 + sqrt 2
        (r"\frac{\sqrt{3}}{4\sqrt{2}-3}", None, None, None),  # two roots: (3 sqrt 3 + 4 sqrt 6)/23
        (r"\frac{1+\sqrt{5}}{2}", "surd", 9, r"\frac{k+m\sqrt{n}}{p}"),
        (r"5(\sqrt{3}-1)", "surd", 13, r"-k+m\sqrt{n}"),
        (r"\frac{41\pi}{4}", "pi", 45, r"\frac{k\pi}{m}"),
        ("2π + 3", "pi", 5, r"k+m\pi"),
        (r"\frac{\pi^2}{6}", "pi", 7, r"\frac{k\pi^{2}}{m}"),
        (r"\frac{1}{2\pi}", "pi", 3, r"\frac{k}{m\pi}"),
        ("6 + 5i", "complex", 11, "k+m i"),
        (r"\frac{1}{1+i}", "complex", 4, r"\frac{k-m i}{n}"),  # (1 - i)/2
        (r"\left( \frac{3}{4}, 0, -2 \right)", "tuple", 5, r"(\frac{k}{m}, n, p)"),  # 3 + 4 + 0 - 2
        (r"\begin{pmatrix} 1/4 & -7/4 \\ 2 & 0 \end{pmatrix}", "matrix", 18, None),  # 1+4+7+4+2+0
        ("43_5", "base", 43, None),
        ("43_{5}", "base", 43, None),
        ("1,3,5", "set", 9, None),
        (r"5 \text{ and } 7", "set", 12, None),
        ("6, 6, -1", "set", 5, None),  # distinct values
        ("1,-1,7,-7", "set", 100, None),  # the sum is 0, so the sum of squares
        (r"\{1,2\}", "set", 3, None),
    ],
)
def test_golden(answer: str, form: str | None, integer: int | None, template: str | None) -> None:
    """What was worked out by hand; every family is among them."""
    result = rewrite(PLAIN, answer)
    if form is None:
        assert result == Refusal(reason="unsupported")
        return
    assert isinstance(result, Rewrite)
    assert (result.form, result.answer) == (form, str(integer))
    assert template is None or result.proof["template"] == template
    assert result.problem.startswith(PLAIN + "\n\n")
    json.dumps(result.proof)
    assert rewrite(result.problem, result.answer) is None


def test_a_polynomial_is_asked_for_at_a_small_integer() -> None:
    """P(2) = 4 + 10 + 4 = 18; where that stands in the text, P(3) = 28; the letter must be the problem's."""
    assert done("x^2+5x+4", "Expand in $x$.").answer == "18"
    assert done("(x+1)(x+4)", "Expand in $x$.").answer == "18"
    assert done("x^2+5x+4", "Expand in $x$, 18.").answer == "28"
    assert "$Q(x)$" in added(done("x^2+5x+4", "Expand $P(x)$."))
    assert rewrite(PLAIN, "x^2+5x+4") == Refusal(reason="variables")
    assert rewrite("The sphere $S$.", "S^2") == Refusal(reason="variables")
    assert done(r"\frac{n(n+1)}{2}", "In terms of $n$.").answer == "3"
    assert done("x - 2", "In $x$.").answer == "1"  # P(2) = 0 tells nothing
    assert done(r"1+\lambda", r"In terms of $\lambda$.").answer == "3"
    assert done("p^4", r"Count the matrices over the ring $\mathbb{Z}_p[i]$.").answer == "16"
    assert done("6m", "The $4m$ by $4m$ board.").answer == "12"  # m is no unit here


def test_the_conditions_that_make_the_integer_unique_are_stated() -> None:
    """Without them 11 - 2 sqrt 6 is 11 - 1 sqrt 24 too, and 3/7 is 6/14."""
    text = added(done(r"\frac{11-2\sqrt{6}}{5}"))
    assert "$k$, $m$, $n$ and $p$ are positive integers" in text
    assert "$n$ is not divisible by the square of any prime" in text
    assert "no prime divides all of $k$, $m$ and $p$" in text
    assert "$k$ and $m$ are relatively prime" in added(done(r"\frac{3}{7}"))
    assert "$i$ is the imaginary unit" in added(done("2+3i"))
    assert "$k$ and $m$ are integers" in added(done("(5, -7)"))
    assert "without the percent sign" in added(done(r"12.5\%"))
    assert "dollars" in added(done(r"\$1.65"))
    assert "square" in added(done("1,-1,7,-7"))
    assert "base 5" in added(done("43_5"))
    assert "rounded to an integer if it is not one" in added(done(r"67\%"))
    assert "包括常数项" in added(done(r"\frac{x+5}{6}", "求 $f(x)=6x-5$ 的反函数，写成 2 的形式。"))


def test_every_family_is_named() -> None:
    """The table of names is what the rules give."""
    answers = ["1/3", "0.7", r"7\%", r"7^\circ", r"\sqrt7", r"\pi/7", "7i", "x+7", "(7,8,9)", "43_5", "7,8"]
    forms = {done(answer, "Use $x$.").form for answer in answers}
    assert forms | {"matrix"} == set(FAMILIES)


@pytest.mark.parametrize(
    ("answer", "integer"),
    [
        ("5", "5"),
        ("+5", "5"),
        ("$5$", "5"),
        (r"\boxed{5}", "5"),
        ("025", "25"),
        ("-7", "-7"),
        ("−7", "-7"),
        ("-0", "0"),
        ("34.0", "34"),
        ("1,000", "1000"),
        (r"676,\!000", "676000"),
        ("1{,}000", "1000"),
        ("12,345,678", "12345678"),
        (r"\frac{6}{3}", "2"),
        (r"\sqrt{49}", "7"),
        (r"\sqrt[3]{8}", "2"),
        ("2^{10}", "1024"),
    ],
)
def test_integers_are_left_alone(answer: str, integer: str) -> None:
    """Spellings of an integer."""
    assert canonical_integer(answer) == integer
    assert rewrite("How many are there?", answer) is None


@pytest.mark.parametrize(
    "answer", ["1,2", "1 2", "5%", "x", "", "five", "1.5", "1,2,3", "²", "٣", "1,0000", "2^{4181}"]
)
def test_what_spells_no_integer(answer: str) -> None:
    """Neither lists nor digits of other scripts."""
    assert canonical_integer(answer) is None


@pytest.mark.parametrize(
    ("reason", "answer", "problem"),
    [
        ("ambiguous", "1/2x", "Simplify in $x$."),
        ("ambiguous", r"\sqrt12", PLAIN),
        ("ambiguous", "2^10x", PLAIN),
        ("ambiguous", "O(2)", "How fast?"),
        ("ambiguous", "i", "The vector $e_i$ for $i = 1$."),
        ("ambiguous_comma", "5,150", PLAIN),
        ("ambiguous_comma", "(1,000, 2)", PLAIN),
        ("ambiguous_pair", "(0,5)", PLAIN),
        ("asks_form", "1/3", "It is m/n for coprime m and n. Find $m+n$."),
        ("choice_letter", r"\text{(C)}", PLAIN),
        ("choice_letter", "B", PLAIN),
        ("empty", "  ", PLAIN),
        ("empty", "1/2", " "),
        ("equation", "y = 3x", PLAIN),
        ("equation", r"x \le 3", PLAIN),
        ("infinite", r"-\infty", PLAIN),
        ("interval", "[0,5]", PLAIN),
        ("interval", "(0,5]", PLAIN),
        ("interval", r"(-\infty, 3) \cup (4, 5)", PLAIN),
        ("interval", "(0,5)", "For what values of $x$ is it positive?"),
        ("leaks", r"21\text{ dogs}", "Of 21 dogs."),
        ("lossy", r"\approx 3.14", PLAIN),
        ("lossy", "(0,0)", PLAIN),
        ("lossy", "4.25", "Round to the nearest tenth."),
        ("multiple_parts", "(1,2),(2,1)", PLAIN),
        ("multiple_parts", "1/2", "Let it be so. (a) Find the first. (b) Find the second."),
        ("lossy", "(3y-5)^2", "Factor $9y^2-30y+25$."),
        ("lossy", r"0.33\pi", PLAIN),
        ("lossy", r"1.5 \times 10^{-3}", PLAIN),
        ("lossy", "(0.5, 0.25)", "Find the point."),
        ("lossy", "0.0456", "Use the Central Limit Theorem to approximate the probability."),
        ("leaks", r"-2\pi", r"Compute the integral. Verify if the result is \( -2\pi \)."),
        ("leaks", r"\dfrac{1}{2}", r"Determine whether the sum is equal to $\frac{1}{2}$."),
        ("not_unique", "1+2i", "Find the gcd of $11+7i$ and $10-5i$."),
        ("leaks", "(7,2,5)", "Is $(p, x, y) = (7, 2, 5)$ the only solution?"),
        ("ambiguous", "3i", r"Compute $\mathbf{j} \times 3\mathbf{k}$ with $\mathbf{i}$."),
        ("ambiguous", "x+1", r"Find the inverse of $2x+5$ in the field $\frac{\Bbb F_7[x]}{\langle x^2+2 \rangle}$."),
        ("ambiguous", "x^3+x+1", "Find the inverse of $x^2+1$ in $GF(2^4)$."),
        ("not_unique", "(-5,1)", "Find the coordinates of either of them."),
        ("not_unique", "(2/3,2/3,1/3)", "Find a unit vector that is orthogonal to both."),
        ("not_unique", "x^4-2x^2+9", r"Construct a polynomial $f(x)$ with $f(i + \sqrt{2}) = 0$."),
        ("not_unique", "5,7", "Find another label."),
        ("not_unique", r"\frac{1}{2}", "写出一个满足条件的分数。"),
        ("plus_minus", r"\pm 3", PLAIN),
        ("proof", r"\sqrt[3]{6}", "Prove that it holds."),
        ("prose", "Yes", PLAIN),
        ("prose", r"\text{October 30}", PLAIN),
        ("too_large", "2^{4181}", PLAIN),
        ("too_large", r"\frac{1}{1234567}", PLAIN),
        ("too_long", "1" * 301, PLAIN),
        ("unreadable", "3:5", PLAIN),
        ("unreadable", r"\frac{1}{0}", PLAIN),
        ("unreadable", r"\frac{1}{\sqrt{3+2\sqrt2}-1-\sqrt2}", PLAIN),  # 1/0 in disguise
        ("unsupported", "e^2", PLAIN),
        ("unsupported", r"5\sqrt[3]{4}", PLAIN),
        ("unsupported", r"\ln 2", PLAIN),
        ("unsupported", r"\sqrt2+\sqrt3+\sqrt5", PLAIN),
        ("unsupported", "49_5", PLAIN),
        ("unsupported", r"7 \text{ p.m.}", PLAIN),
        ("variables", "a + b", PLAIN),
        ("variables", r"b \cdot b", "The vector $b$."),
        ("variables", "20 N", "A force of 10 N acts."),
        ("variables", "50m", r"It is $200\text{ m}$ long."),
        ("variables", "3j", r"Let $\hat{j}$ be a unit vector."),
        ("variables", r"\frac{1}{x}", "In terms of $x$."),
    ],
)
def test_refusals(reason: str, answer: str, problem: str) -> None:
    """What can't be rewritten without loss says why."""
    assert rewrite(problem, answer) == Refusal(reason=reason)


def test_reasons_are_explained_and_all_tested() -> None:
    """Every name has words, and a case above or below."""
    marks = next(mark for mark in test_refusals.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {case[0] for case in marks.args[1]} | {"no_letters", "llm_bad_reply", "unproven"} == set(REASONS)
    assert all(REASONS.values())
    with pytest.raises(ValueError, match="no such reason"):
        Refusal(reason="because")


@pytest.mark.parametrize(
    ("problem", "verdict"),
    [
        ("Find the ordered pair.", "rewritten"),
        ("Enter the coordinates of the point.", "rewritten"),
        ("Find $(x, y)$.", "rewritten"),
        ("Find the domain.", "interval"),
        ("For which points is it in the domain?", "ambiguous_pair"),
        ("求点的坐标。", "rewritten"),
        ("求函数的定义域。", "interval"),
    ],
)
def test_pairs_and_intervals(problem: str, verdict: str) -> None:
    """`(0, 5)` is told by the problem alone; `(5, 0)` and triples can be no interval."""
    result = rewrite(problem, "(0, 5)")
    assert verdict == ("rewritten" if isinstance(result, Rewrite) else result and result.reason)
    assert done("(5, 0)", "Find the range.").form == "tuple"
    assert done("(1, 2, 3)", "Find the range.").form == "tuple"


def test_a_comma_separates_thousands_where_a_single_number_is_asked_for() -> None:
    """`30,951` may be two numbers, but not as the answer to how many there are."""
    assert rewrite("How many 5-digit numbers have a zero?", "30,951") is None
    assert rewrite("Find all values of $x$.", "30,951") == Refusal(reason="ambiguous_comma")


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        (r"\frac{3}{19}", 19, True),
        ("x_{19}", 19, True),
        ("it is 19.", 19, True),
        ("it is -19", 19, True),
        ("it is 19", -19, True),
        ("1,900 or 190", 19, False),
        ("1,900", 1900, True),
        (r"1{,}900", 1900, True),
        ("on day 019", 19, True),
        ("Twelve men", 12, True),
        ("nineteen men", 19, True),
        ("Seventy-five men", 75, True),
        ("seventy-five men", 70, False),
        ("二十七个苹果", 27, True),
        ("十二个苹果", 12, True),
        ("often", 10, False),
        ("３ apples", 3, True),
        ("七个苹果", 7, True),
        ("七十个苹果", 7, False),
        ("七十个苹果", 70, True),
        ("9" * 5000, 19, False),
    ],
)
def test_number_tokens(text: str, value: int, found: bool) -> None:
    """What counts as standing in the text."""
    assert stands_in(value, text) is found


def test_leaks_are_avoided_by_weights() -> None:
    """3/7: 3 + 7 = 10, then 2*3 + 7 = 13, then 3 + 2*7 = 17, ... in a fixed order."""
    assert done(r"\frac{3}{7}").answer == "10"
    result = done(r"\frac{3}{7}", "There are ten.")
    assert (result.answer, result.proof["target"]) == ("13", "2k+m")
    assert done(r"\frac{3}{7}", "There are 10 of 13.").answer == "17"
    assert rewrite("From 0 to " + " ".join(map(str, range(60))), r"\frac{3}{7}") == Refusal(reason="leaks")
    assert rewrite("Of 25 in all.", r"25\%") == Refusal(reason="leaks")
    # 43 in base 5 stands in the text, so its value 4*5 + 3 is asked for
    result = done("43_5", "Not 43.")
    assert (result.answer, "decimal notation" in added(result)) == ("23", True)


def test_an_integer_in_the_added_sentence_leaks_too() -> None:
    """10.0% would have 10 as a factor in its sentence; 2 decimal places must not stand for a 2."""
    assert rewrite(PLAIN, "0.02") == Refusal(reason="leaks")
    assert rewrite(PLAIN, r"1.0\text{ m}") == Refusal(reason="leaks")


def test_letters_do_not_collide() -> None:
    """A letter the problem uses names no parameter, nor one of the answer."""
    assert done(r"\frac{3}{7}", "Let $k$ be in \\(mn\\).").proof["template"] == r"\frac{p}{q}"
    assert done(r"\frac{3}{7}", "Let k be it.").proof["template"] == r"\frac{m}{n}"
    assert "x" not in free_letters(r"The $x$-axis")
    assert "t" in free_letters(r"$\text{the}$ $\tan$")
    everything = "$" + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + "$"
    assert rewrite(everything, r"\frac{3}{7}") == Refusal(reason="no_letters")


def test_chinese() -> None:
    """A problem in Chinese gets its sentences in Chinese, whatever the family; `language` overrules."""
    problem = "求下列表达式中 $x$ 的值。"
    assert is_chinese(problem, None)
    assert not is_chinese("Find 值 in this long English text.", None)
    for answer in (r"\frac{3}{7}", r"11-2\sqrt{6}", "0.75", r"\$1.65", r"25\%", r"60^\circ", "2+3i", "(7,5)", "43_5"):
        text = added(done(answer, problem))
        assert is_chinese(text, None)
        assert "answer" not in text
    for answer in ("1,3,5", "1,-1", "x^2+1", r"21\text{ cm}"):
        assert is_chinese(added(done(answer, problem)), None)
    assert "不能被任何质数的平方整除" in added(done(r"11-2\sqrt{6}", problem))
    assert "answer" in added(done(r"\frac{3}{7}", problem, "en"))
    assert "整数" in added(done(r"\frac{3}{7}", PLAIN, "zh"))


def test_wrong_forms_are_not_accepted() -> None:
    """The checks do not trust what classified: a wrong parameter, target, second spelling or size is seen."""
    form = numeric_form(parse(r"\frac{3}{7}"), "km")
    wrong = numeric_form(parse(r"\frac{4}{7}"), "km")
    good = form.targets[0]
    accept(form, good, PLAIN, lambda text: numeric_form(parse(text), "km"))
    for shown, target, again, reason in (
        (form, good, lambda text: wrong, "unproven"),
        (form, Target(text="k+m", value=11), lambda text: form, "unproven"),
        (form, Target(text="k-m+(", value=10), lambda text: form, "unproven"),
        (form, Target(text="200000(k+m)", value=2000000), lambda text: form, "too_large"),
    ):
        with pytest.raises(Refused, match=reason):
            accept(shown, target, PLAIN, again)
    with pytest.raises(Refused, match="leaks"):
        accept(form, good, "ten", lambda text: form)


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^9}}",
        "((2^{40})^{40})^{40}",
        "(((x+1)^{40})^{40})^{40}",
        "((1+\\sqrt{2})^{40})^{40}",
        "((1+\\sqrt{2}+\\sqrt{3}+\\sqrt{5}+\\sqrt{7}+\\pi)^{40})",
        r"(1/2)^{((0.5)^{2})^{40}}",
        r"(\frac{40}{(((40)*(2))+(x))^{2}})^{40}",
        r"\frac{\sqrt{14}-\frac{12/5}{97/i}}{\frac{2/i}{97x}-\sqrt{(1/2)-\sqrt{2}}}",
        r"\frac{(\frac{\sqrt2}{\pi}-\sqrt{\pi})^{18}}{\frac{97^{-2}}{\pi^{3}-\sqrt{2}}+\frac{1}{\sqrt{5}+1/97}}",
        "{" * 10**6,
        "(" * 299,
        "-" * 300,
        "7" * 10**5,
        "\\sqrt{" * 40 + "2" + "}" * 40,
        "\\sqrt{999999999999999999999999999989}",
        "\\frac" * 60,
        "1,000" * 20000,
        "\x00",
        "\ud800",
        "1/\ud800",
        "²³",
        "٣/٤",
        "\\begin{pmatrix}\\\\ & \\end{pmatrix}",
        "\\text{" * 40,
        "$" * 10**5,
        "12_{" + "9" * 200 + "}",
        "\\frac{1}{" + "+".join(f"\\sqrt{{{n}}}" for n in (2, 3, 5, 7, 11, 13, 17, 19)) + "}",
        "\\sqrt{" + "+".join(f"\\sqrt{{{n}}}" for n in (2, 3, 5)) + "}",
    ],
)
def test_hostile_answers_end_soon(answer: str) -> None:
    """Nothing hangs, eats memory or raises."""
    start = time.perf_counter()
    for problem in (PLAIN, answer[:1000]):
        rewrite(problem, answer)
        canonical_integer(answer)
        llm_rewrite(problem, answer, lambda prompt: "no")
        told = {"sentence": f"Give x of {answer}.", "form": answer, "parameters": {"x": 1}, "target": "x"}
        llm(r"\frac{1}{3}", told, problem=problem)
        llm(answer, {**told, "form": "x"}, problem=problem)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    "text", ["", "1 2", "2 +", "x^", "(1", "1)", "\\frac{1}", "\\sqrt", "1..2", "a^b^c", "\\foo", "x'"]
)
def test_what_the_reader_does_not_read(text: str) -> None:
    """Typed errors, all with a known reason."""
    with pytest.raises(LatexError) as caught:
        parse(text)
    assert caught.value.reason in REASONS


GOOD = {
    "sentence": r"It is $k\sqrt[3]{m}$ with positive integers and m cube-free; give $k+m$.",
    "form": r"k\sqrt[3]{m}",
    "parameters": {"k": 5, "m": 4},
    "target": "k+m",
}


def replies(*told: object) -> tuple[list[str], object]:
    """A scripted model and what it was asked."""
    asked: list[str] = []
    script = iter([item if isinstance(item, str) else json.dumps(item) for item in told])

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return next(script)

    return asked, ask


def llm(answer: str, *told: object, problem: str = PLAIN) -> Rewrite | Refusal:
    """What a scripted model brings about."""
    return llm_rewrite(problem, answer, replies(*told)[1])  # type: ignore[arg-type]


def test_a_model_words_what_no_rule_covers() -> None:
    """5 * 4^(1/3): the model is asked twice, the second time for another spelling, and must agree with itself."""
    answer = r"5\sqrt[3]{4}"
    refused = rewrite(PLAIN, answer)
    assert isinstance(refused, Refusal)
    assert refused.reason in LLM_MAY_TRY <= set(REASONS)
    asked, ask = replies(GOOD, "```json\n" + json.dumps(GOOD) + "\n```")
    result = llm_rewrite(PLAIN, answer, ask)  # type: ignore[arg-type]
    assert isinstance(result, Rewrite)
    assert (result.answer, result.form, result.problem) == ("9", "llm", PLAIN + "\n\n" + GOOD["sentence"])  # type: ignore[operator]
    assert answer in asked[0]
    assert result.proof["second_form"] in asked[1]
    assert asked[0] != asked[1]
    pair = {"sentence": "It is $(k, m)$; $k+m$.", "form": "(k, m)", "parameters": {"k": 0, "m": 5}, "target": "k+m"}
    assert isinstance(llm("(0,5)", pair, pair), Rewrite)
    log = {
        "sentence": r"It is $k\ln m$ with the smallest $m$; $km$.",
        "form": r"k\ln m",
        "parameters": {"k": 3, "m": 2},
        "target": "km",
    }
    assert isinstance(llm(r"3\ln 2", log, log), Rewrite)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"parameters": {"k": 4, "m": 5}}, "unproven"),
        ({"parameters": {"k": 5, "m": 4, "n": 1}}, "llm_bad_reply"),
        ({"parameters": {"k": 5, "m": True}}, "llm_bad_reply"),
        ({"parameters": {"k": 5, "m": 4.0}}, "llm_bad_reply"),
        ({"parameters": {"k": 5}}, "unproven"),
        ({"parameters": [5, 4]}, "llm_bad_reply"),
        ({"target": "k"}, "llm_bad_reply"),
        ({"target": "k+m+n", "sentence": GOOD["sentence"] + " k+m+n"}, "llm_bad_reply"),  # type: ignore[operator]
        ({"target": r"\frac{k}{m}", "sentence": GOOD["sentence"] + r"\frac{k}{m}"}, "llm_bad_reply"),  # type: ignore[operator]
        ({"target": "k^{30}m", "sentence": GOOD["sentence"] + "k^{30}m"}, "llm_bad_reply"),  # type: ignore[operator]
        ({"sentence": "Give $k+m$."}, "llm_bad_reply"),
        ({"sentence": GOOD["sentence"] + " Not 9."}, "leaks"),  # type: ignore[operator]
        ({"sentence": GOOD["sentence"] * 40}, "llm_bad_reply"),  # type: ignore[operator]
        ({"sentence": 3}, "llm_bad_reply"),
        ({"form": ""}, "llm_bad_reply"),
    ],
)
def test_a_model_is_not_believed(change: dict[str, object], reason: str) -> None:
    """Wrong values, leaks and broken rules."""
    assert llm(r"5\sqrt[3]{4}", {**GOOD, **change}, {**GOOD, **change}) == Refusal(reason=reason)


@pytest.mark.parametrize(
    ("answer", "form", "target", "values", "conditions", "reason"),
    [
        (r"3\ln 2", r"k\ln m", "k+m", [3, 2], "", "not_unique"),  # ln 8
        (r"3\ln 2", r"k\ln m", "k+m", [3, 2], "m no perfect power", ""),
        (r"5\sqrt[3]{4}", r"k\sqrt[3]{m}", "k+m", [5, 4], "positive integers", "not_unique"),  # 500^(1/3)
        (r"\sqrt[3]{2}", r"\sqrt[k]{m}", "k+m", [3, 2], "positive integers", "not_unique"),  # 4^(1/6)
        (r"\frac{5}{7}e", r"\frac{ke}{m}", "k+m", [5, 7], "integers", "not_unique"),
        (r"\frac{5}{7}e", r"\frac{ke}{m}", "k+m", [5, 7], "coprime positive integers", ""),
        (r"\frac{5}{7}e", r"\frac{(k+n)e}{m}", "k+m+2n", [3, 7, 2], "coprime positive integers", "not_unique"),
        (r"\sqrt2+\sqrt3+\sqrt5", r"\sqrt{k}+\sqrt{m}+\sqrt{n}", "k+m+n", [2, 3, 5], "integers", ""),  # in any order
        ("7e", "ke", "k+1000", [7], "k=7", "leaks"),
        ("7e", "ke", "2k", [7], "for 7e", "leaks"),
        ("7e", "ke", "k", [7], "2k", "llm_bad_reply"),
    ],
)
def test_a_models_form_must_be_unique(
    answer: str, form: str, target: str, values: list[int], conditions: str, reason: str
) -> None:
    """Other values that the sentence does not exclude, and sentences that tell too much or something else."""
    shown = f"${target}$" if reason != "llm_bad_reply" else f"$2{target}$"
    parameters = dict(zip("kmn", values, strict=False))
    sentence = f"It is ${form}$, {conditions}; give {shown}."
    reply = {"sentence": sentence, "form": form, "parameters": parameters, "target": target}
    result = llm(answer, reply, reply)
    assert (result.reason if isinstance(result, Refusal) else "") == reason


def test_a_model_takes_no_letter_of_the_problem() -> None:
    """`k` would mean two things."""
    assert llm(r"5\sqrt[3]{4}", GOOD, GOOD, problem="For $k$.") == Refusal(reason="llm_bad_reply")


@pytest.mark.parametrize(
    "garbage", ["", "Sure!", "[]", "[" * 100_000, "{", "null", '{"sentence": 1}', "\ud800", "```json\n{}```"]
)
def test_a_models_garbage(garbage: str) -> None:
    """Replies of any shape."""
    assert llm(r"5\sqrt[3]{4}", garbage) == Refusal(reason="llm_bad_reply")


def test_a_model_must_agree_with_itself_and_its_failures_pass() -> None:
    """Another second answer is unproven; what `ask` raises is the caller's."""
    other = {**GOOD, "parameters": {"k": 1, "m": 500}}  # 500^(1/3) is the same number
    assert llm(r"5\sqrt[3]{4}", GOOD, other) == Refusal(reason="unproven")
    assert isinstance(llm("Yes", GOOD), Refusal)
    assert llm("", GOOD) == Refusal(reason="empty")

    def failing(prompt: str) -> str:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        llm_rewrite(PLAIN, r"5\sqrt[3]{4}", failing)


def test_real_answers() -> None:
    """A stretch of MATH: most answers are rewritten, each proof is JSON, none leaks, and again gives nothing new."""
    path = DATA / "deepscaler_parts" / "rllm_train_math.json"
    if not path.exists():
        pytest.skip("the shared data are not here")
    rows = json.loads(path.read_text(encoding="utf-8"))[:900]
    results = [rewrite(row["problem"], str(row["answer"])) for row in rows]
    rewritten = [result for result in results if isinstance(result, Rewrite)]
    refused = [result for result in results if isinstance(result, Refusal)]
    assert len(rewritten) > 3 * len(refused) > 0
    for result in rewritten:
        assert not stands_in(int(result.answer), result.problem)
        assert rewrite(result.problem, result.answer) is None
        json.dumps(result.proof)
