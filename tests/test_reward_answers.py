r"""Answers that are right and answers that are not, in the spellings that models use.

tests/answers: `seen` was written before the grader was tuned and used in tuning it; `aside` is its twin
that was not looked at until the grader scored 344 of its 347 rows; `reviewed` holds what a hostile review
of the grader found. All three are the project's own. A row holds gold and pred (a bare answer) or
completion (a text), expected, and why.
"""

from __future__ import annotations

import json
import random
import re
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dapo.reward.clean import clean
from dapo.reward.compare import compare
from dapo.reward.extract import extract
from dapo.reward.grader import Grader
from dapo.reward.guard import refuse
from dapo.reward.places import FINDERS
from dapo.reward.read import read
from dapo.reward.rows import LENIENT_POLICIES, grade_rows
from dapo.reward.values import Rules, fraction_latex
from dapo.types import Verdict

FOLDER = Path(__file__).parent / "answers"
ROWS = [json.loads(line) for path in sorted(FOLDER.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
# Where the label is right about the value and the grader refuses by policy or for want of a rule.
DISAGREED = {
    ("3628800", "10!"): "arithmetic left undone does not answer a number",
}


@pytest.fixture(name="graded", scope="module")
def fixture_graded() -> list[Any]:
    """All rows graded, what the reviews found by the marked policies alone, the others as `dapo grade FILE` does.

    With a longer limit: a busy machine is no wrong answer.
    """
    strict = [row for row in ROWS if row["suite"].startswith("reviewed")]
    others = [row for row in ROWS if row not in strict]
    found = grade_rows(Grader(("answer_line", "boxed", "tag"), limit_s=20.0), strict, 2)
    return found + grade_rows(Grader(LENIENT_POLICIES, limit_s=20.0), others, 2)


@pytest.mark.parametrize("suite", sorted({row["suite"] for row in ROWS}))
def test_every_labelled_answer(graded: list[Any], suite: str) -> None:
    """The grader says what the label says, but for the disagreements listed above."""
    wrong = [
        (one.row["gold"], one.row.get("pred", one.row.get("completion")), one.row["expected"], one.stage)
        for one in graded
        if one.row["suite"] == suite and one.correct != one.row["expected"]
    ]
    assert [entry for entry in wrong if entry[:2] not in DISAGREED] == []


def test_every_disagreement_is_one(graded: list[Any]) -> None:
    """None is listed that is none, and none of them pays."""
    open_ones = {(one.row["gold"], one.row.get("pred")) for one in graded if one.correct != one.row["expected"]}
    assert open_ones == set(DISAGREED)
    assert all(one.row["expected"] for one in graded if one.correct != one.row["expected"])


def test_no_verdict_is_an_accident(graded: list[Any]) -> None:
    """No timeouts; an error is a gold refused with a reason."""
    assert not [one.row for one in graded if one.verdict is Verdict.TIMEOUT]
    assert all(one.stage.startswith("gold refused: ") for one in graded if one.verdict is Verdict.ERROR)


# --- situations from public reports (R...) --------------------------------------------------------

SITUATIONS = [
    ("R1", "12", "Answer: 1,2", False),
    ("R1", "12345", "Answer: 12,345", True),
    *(("R3", r"\frac{1}{2}", f"Answer: {half}", True) for half in (r"\dfrac{1}{2}", r"\tfrac12", "1/2", "0.5")),
    ("R4", "34", r"\boxed{34}" + "x" * 120, True),
    ("R4", "34", "Answer: 34\n" + "remark " * 60, True),
    ("R6", "7", r"\boxed{5} no, I was wrong, it must be \boxed{7}", True),
    ("R6", "5", r"\boxed{5} no, I was wrong, it must be \boxed{7}", False),
    ("R6", "E", r"\boxed{\text{E}}", True),
    ("R6", r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", True),
    ("R9", "5", "so it is 5", False),
    ("R9", "5", r"\boxed{} and 5", False),
    ("R14", "5/4", r"\boxed{1 1/4}", True),
    ("R14", "2", r"\boxed{2 2/3}", False),
    ("R14", "10", r"\boxed{4 10/3}", False),
    ("R16", "[0,1]", r"\boxed{[0,1)}", False),
    ("R16", "(2,1)", r"\boxed{(1,2)}", False),
    ("R16", r"\{2,1\}", r"\boxed{\{1,2\}}", True),
    ("R16", r"(-\infty,0)\cup(1,2)", r"\boxed{(1,2)\cup(-\infty,0)}", True),
    ("R16", r"(-\infty,3)", r"\boxed{x<3}", True),
    ("R16", "x<3", r"\boxed{(-\infty,3)}", True),
    ("R17", r"5\text{ cm}", r"\boxed{5\text{ m}}", False),
    ("R17", "34", r"\boxed{34\text{ cm}}", True),
    ("R19", "5", r"\boxed{5^{5^{5^{5^5}}}}", False),
    ("R20", "5", r"\boxed{5}", True),
    ("R23", "34", "Answer: 33<|im_end|>Answer: 34", False),
]


@pytest.mark.parametrize(("name", "gold", "text", "right"), SITUATIONS)
def test_situations(name: str, gold: str, text: str, right: bool) -> None:
    """Each is one of a kind whose neighbours stand in tests/answers; R20 and R21 are in test_reward_pool."""
    start = time.monotonic()
    assert Grader().score(text, gold).correct is right
    assert time.monotonic() - start < 10


# --- stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "answer", "stage"),
    [
        ("5", "5", "number"),
        ("0.5", "1/2", "number"),
        ("50", r"50\%", "percent"),
        ("5", "5 cm", "unit"),
        ("25", "12+13", "unevaluated"),
        ("(1,2)", "(1,2)", "sequence"),
        (r"\{1,2\}", "1, 2", "set"),
        ("[0,1]", r"0\le x\le1", "interval"),
        ("x=5", "5", "equation"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)", "matrix"),
        ("B", "(B)", "choice"),
        ("Yes", "yes", "words"),
        (r"\frac{2}{\sqrt2}", r"\sqrt2", "symbolic"),
    ],
)
def test_the_stage_that_decided_is_named(gold: str, answer: str, stage: str) -> None:
    """A Score says by what it was decided, after the policy that found the answer."""
    assert Grader().score(f"\\boxed{{{answer}}}", gold).stage == f"boxed: {stage}"


def test_unevaluated_arithmetic() -> None:
    """Refused for a number by default, since repeating the question would pay; accepted where the config says so."""
    lenient = Grader(unevaluated="right")
    for gold, answer in (("25", "12+13"), ("3628800", "10!"), ("2", r"\sqrt{4}"), ("1/4", "2^{-2}")):
        assert Grader().judge(gold, answer) == (Verdict.WRONG, "unevaluated")
        assert lenient.judge(gold, answer)[0] is Verdict.CORRECT
    assert lenient.judge("25", "12+14")[0] is Verdict.WRONG
    assert Grader().judge("2+3", "5")[0] is Verdict.CORRECT  # the gold itself is left undone


def test_units_convert_where_the_config_says_so() -> None:
    """Exactly, within one dimension; never by default."""
    convert = Grader(convert_units=True)
    for gold, answer in (
        (r"5\text{ m}", r"500\text{ cm}"),
        ("1 hour", "3600 seconds"),
        (r"1\text{ m}^2", r"10000\text{ cm}^2"),
    ):
        assert Grader().judge(gold, answer) == (Verdict.WRONG, "unit")
        assert convert.judge(gold, answer)[0] is Verdict.CORRECT
    for gold, answer in ((r"5\text{ m}", r"5\text{ s}"), (r"5\text{ m}", r"5\text{ m}^2"), (r"5\text{ m}", "5 apples")):
        assert convert.judge(gold, answer)[0] is Verdict.WRONG


# --- properties -----------------------------------------------------------------------------------

INTEGERS = st.integers(-(10**25), 10**25).map(str)
DECIMALS = st.decimals(-(10**9), 10**9, allow_nan=False, places=4).map(str)
SMALL = st.integers(1, 99).map(str)
FRACTIONS = st.builds(
    lambda a, b, f: f.format(a, b),
    SMALL,
    SMALL,
    st.sampled_from([r"\frac{{{}}}{{{}}}", "{}/{}", r"-\dfrac{{{}}}{{{}}}"]),
)
NUMBERS = st.one_of(INTEGERS, DECIMALS, FRACTIONS)
ATOMS = st.one_of(SMALL, st.sampled_from(["x", "y", r"\pi", r"\theta", "n", "e"]))
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(r"\frac{{{}}}{{{}}}".format, inner, inner),
        st.builds(r"\sqrt{{{}}}".format, inner),
        st.builds("({}+{})".format, inner, inner),
        st.builds("{}-{}".format, inner, inner),
        st.builds(r"{} \cdot {}".format, inner, inner),
        st.builds("({})^{{{}}}".format, inner, SMALL),
        st.builds(r"\sin({})".format, inner),
    ),
    max_leaves=6,
)
TUPLES = st.lists(NUMBERS, min_size=2, max_size=4).map(lambda items: f"({', '.join(items)})")
SETS = st.lists(NUMBERS, min_size=1, max_size=4).map(lambda items: f"\\{{{', '.join(items)}\\}}")
INTERVALS = st.builds(
    lambda a, width, left, right: f"{left}{a}, {a + width}{right}",
    st.integers(-99, 99), st.integers(1, 99), st.sampled_from("[("), st.sampled_from("])"),
)  # fmt: skip
MATRICES = st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=3).map(
    lambda rows: r"\begin{pmatrix}" + r" \\ ".join(" & ".join(row) for row in rows) + r"\end{pmatrix}"
)
ANSWERS = st.one_of(
    NUMBERS, FORMULAS, TUPLES, SETS, INTERVALS, MATRICES, st.sampled_from(["Yes", r"\text{even}", "(B)"])
)
WRAPPERS = st.sampled_from(
    [
        "Answer: {}", "**Answer:** {}", "Answer: ${}$.", "Answer: **{}**", "答案：{}", "so\n\\boxed{{{}}}.",
    "\\fbox{{{}}}",
        "$\\boxed{{{}}}$", "\\[\\boxed{{{}}}\\]", "Answer: \\({}\\)", "Answer: \\boxed{{{}}}",
    "<think>3</think>Answer: {}",
        "Answer: {}\nThat was long.", "\\boxed{{\\boxed{{{}}}}}", "Answer: $\\displaystyle {}$", "Answer:\n$$\n{}\n$$",
        "Answer: \\left.{}\\right.", "\\boxed{{ {} }}", "Final Answer: The final answer is ${}$. I hope it is correct.",
    ]
)  # fmt: skip


@given(ANSWERS, WRAPPERS)
@settings(max_examples=300, deadline=None)
def test_every_answer_equals_itself_in_any_wrapper(answer: str, wrapper: str) -> None:
    """Without asking algebra: the same answer again, however it is presented."""
    score = Grader().score(wrapper.format(answer), answer)
    assert score.correct, (score.extracted, score.stage)


@given(NUMBERS, NUMBERS, WRAPPERS)
@settings(max_examples=200, deadline=None)
def test_two_numbers_are_equal_when_their_values_are(first: str, second: str, wrapper: str) -> None:
    """Against Python's own fractions."""

    def value(text: str) -> Fraction:
        plain = re.sub(r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
        top, _, bottom = plain.partition("/")
        return Fraction(top) / Fraction(bottom or "1")

    assert Grader().score(wrapper.format(first), second).correct is (value(first) == value(second))


@given(st.lists(NUMBERS, min_size=2, max_size=5), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_order_matters_in_tuples_alone(items: list[str], dice: random.Random) -> None:
    """Sets and rows of answers in any order; tuples in theirs."""
    mixed = items[:]
    dice.shuffle(mixed)
    grader = Grader()
    assert grader.judge(f"\\{{{', '.join(items)}\\}}", f"\\{{{', '.join(mixed)}\\}}")[0] is Verdict.CORRECT
    assert grader.judge(", ".join(items), " and ".join(mixed))[0] is Verdict.CORRECT
    values = [compare(read(clean(a)), read(clean(b)), Rules())[0] for a, b in zip(items, mixed, strict=True)]
    assert (grader.judge(f"({', '.join(items)})", f"({', '.join(mixed)})")[0] is Verdict.CORRECT) is all(values)


@given(INTERVALS, INTERVALS)
@settings(max_examples=150, deadline=None)
def test_intervals_are_equal_when_ends_and_brackets_are(first: str, second: str) -> None:
    """And a bound on a variable is the interval it describes, both ways."""
    grader = Grader()
    assert (grader.judge(first, second)[0] is Verdict.CORRECT) is (first == second)
    low, high = first[1:-1].split(", ")
    left, right = r"\le" if first[0] == "[" else "<", r"\le" if first[-1] == "]" else "<"
    bound = f"{low} {left} x {right} {high}"
    assert grader.judge(first, bound)[0] is Verdict.CORRECT
    assert (grader.judge(bound, second)[0] is Verdict.CORRECT) is (first == second)


@given(st.fractions(max_denominator=10**6))
@settings(max_examples=60, deadline=None)
def test_a_neighbour_never_pays(value: Fraction) -> None:
    """Nothing is rounded into equality, at any scale."""
    near = value + Fraction(1, 10**40)
    assert Grader().judge(fraction_latex(value), fraction_latex(near))[0] is Verdict.WRONG


# --- no text can break it -------------------------------------------------------------------------

PIECES = [
    *"0123456789 \n.,;:=<>|/+-*^_(){}[]$&%!'\"abxyABC", "\\frac", "\\boxed{", "\\text{", "\\{", "\\}", "\\left(",
    "\\sqrt",
    "Answer:", "the answer is ", " or ", " and ", "\\pm ", "\\cup ", "\\in ", "\\infty ", "^{\\circ}", "\\%",
    "\\begin{pmatrix}",
    "\\end{pmatrix}", "\\\\", "</think>", "<think>", "<answer>", "</answer>", "５", "：", "−", "²", "½", "√", "cm",
    "\x00", "\ud800",
    "\u202e", "\u200f", "\u200b", "答案", "不", "١", "...", "$$", "\\[", "\\]", "for all ", "\\equiv ", "\\pmod{7}",
    "million",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join),
)
@example("\\boxed{" * 50, "{" * 50)
@example("Answer: ", "")
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_has_a_verdict(text: str, gold: str) -> None:
    """Never an exception, in any policy; an answer that pays has a gold that could be read."""
    for policy in FINDERS:
        found, name = extract(text, [policy])
        assert name in ("", policy)
        assert found is None or found.strip()
        if found is not None:
            decision = Grader()._decide(gold, found)
            assert decision is None or isinstance(decision[0], Verdict)


@given(st.text(st.characters(codec=None, exclude_categories=[]), max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_unicode_is_read(text: str) -> None:
    """Lone surrogates, private characters, marks that run backwards."""
    read(clean(text))
    Grader()._decide(text, text)


HOSTILE = [
    "9^{9^{9^{9}}}", "5^{5^{5^{5^5}}}", "((9!)!)!", "1000000!", r"\binom{10^{9}}{5\cdot 10^{8}}",
    r"\binom{99999999}{4444444}", r"\sum_{k=1}^{10^{12}} k^{k}", r"\sum_{k=1}^{99999999} \frac{1}{k}",
    r"\prod_{k=1}^{1000000} k", "9^{99999999}", "2^{-99999999}", "(" * 100_000, "{" * 100_000,
    r"\sqrt{" * 5_000 + "2" + "}" * 5_000, r"\frac{1}{" * 400 + "2" + "}" * 400, "(" * 3000 + "x" + ")" * 3000,
    "x" * 10_000, "1" * 1_000_000, "1e999999999", r"\int_0^1 x^{x^{x}} dx", "\x00", "\ud800", "٥", "५",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: f"{text[:12]!r}*{len(text)}")
@pytest.mark.parametrize("gold", ["5", r"\sqrt{2} + x"])
def test_hostile_answers_end_in_time(text: str, gold: str) -> None:
    """Within the limit plus a second once the workers are up; wrong, timed out or an error, never right."""
    grader = Grader(("boxed",), limit_s=2.0)
    grader.judge(r"\sqrt{2}+y", "x^2")  # the workers are up
    start = time.monotonic()
    score = grader.score(f"\\boxed{{{text}}}", gold)
    assert time.monotonic() - start < 3.0 + 1.0  # and a second for a busy machine
    assert score.correct is False


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}",
        "((9!)!)!",
        "1000000!",
        r"\binom{99999999}{4444444}",
        r"\sum_{k=1}^{99999999} k",
        "9^{99999999}",
        "x^{x^{x^{x}}}",
        "e^{e^{e^{e}}}",
    ],
)
def test_what_cannot_end_is_turned_away(text: str) -> None:
    """Before any worker sees it."""
    assert refuse(text)
    assert Grader()._decide("x", text) is not None


@pytest.mark.parametrize(
    "text", [r"2^{2019}", r"\frac{100!}{98!}", r"\binom{100}{50}", r"\sum_{k=1}^{100} k^2", r"e^{x^{2}}", r"10^{100}"]
)
def test_what_can_end_is_not_turned_away(text: str) -> None:
    """Real answers hold such things."""
    assert refuse(text) is None


@pytest.mark.parametrize("policy", FINDERS)
@pytest.mark.parametrize(
    "unit",
    [
        r"\boxed{5}",
        r"\boxed{",
        "Answer: 5\n",
        "<answer>",
        "$5$ ",
        "1,",
        "1 ",
        "** ",
        r"\[",
        "answer is ",
        "答案：",
        " ",
        "\n",
    ],
)
def test_text_is_read_in_linear_time(settled: None, policy: str, unit: str) -> None:
    """Four times the text takes about four times the time: at most eight, where a quadratic reader takes sixteen."""

    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        start = time.process_time()
        extract(text, [policy])
        return time.process_time() - start

    small = min(seconds(60_000) for _ in range(2))
    assert min(seconds(240_000) for _ in range(2)) < 8 * small + 0.1


@pytest.mark.parametrize("unit", [r"\boxed{5} ", "Answer: 5\n", "1 ", "{", "$x$ ", "\ud800", "答案：5 "])
def test_a_megabyte_is_graded(settled: None, unit: str) -> None:
    """No exception, no hang: some seconds at most for the worst of texts."""
    start = time.process_time()
    Grader(LENIENT_POLICIES).score(unit * (1_000_000 // len(unit)), "5")
    assert time.process_time() - start < 15
