"""The built-in grader: where it looks, what it holds equal, and that no text can break or fool it."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dapo.config import load_config
from dapo.reward import Grader, Scorer
from dapo.reward.extract import extract
from dapo.reward.number import parse_number
from dapo.types import Prompt, Verdict

ALL = ("answer_line", "boxed", "last_number")
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=[]), max_size=200)  # NUL and surrogates included
WORDS = ["Answer:", "答案：", "\\boxed{", "\\frac", "{", "}", "1", "2", ",", ".", "/", "-", " ", "\n", "</think>"]
RARE = ["\\text{", "$", "０", "−", "**", "\x00", "\ud800", "9" * 5000]
PIECES = st.lists(st.sampled_from([*WORDS, *RARE]), max_size=30).map("".join)


def grade(text: str, gold: str, *policies: str) -> Verdict:
    """The verdict under these policies; the default ones without."""
    return Grader(policies or ("answer_line", "boxed")).score(text, gold).verdict


# --- extraction -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Answer: 34", "34"),
        ("so\nANSWER: 34\nbye", "34"),
        ("**Answer:** 34", "34"),
        ("**Answer**: 34", "34"),
        ("Final answer is: 34", "34"),
        ("Answer : 34", "34"),
        ("### Answer: $34$", "$34$"),
        ("答案：34", "34"),
        ("答案: 34", "34"),
        ("答案：３４", "３４"),
        ("Answer：34", "34"),
        ("Answer: 34\r\nbye", "34"),
        ("Answer: 5\nno, Answer: 7", "7"),  # R6: the last occurrence
        ("Answer: 34\n" + "x" * 320, "34"),  # R4: no tail window
        ("Answer: 5\nAnswer:", None),  # the last one is empty, and the first does not stand in
        ("the answer is 34", None),  # no colon, no answer line
        ("34", None),
    ],
)
def test_answer_line(text: str, found: str | None) -> None:
    """Markdown, Chinese and full-width writing lead to the same place; only the last line counts."""
    assert extract(text, ["answer_line"])[0] == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{34}", "34"),
        (r"\boxed {34}", "34"),
        (r"\fbox{34}", "34"),
        (r"\boxed{5} no, \boxed{7}", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\text{E}}", r"\text{E}"),
        (r"\boxed{\{5\}}", r"\{5\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{34}" + "x" * 120, "34"),
        (r"\boxed{34", None),  # unbalanced: as good as empty
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed{1}\boxed{}", None),  # the last box decides, even empty
        (r"\boxed 34", "34"),
    ],
)
def test_boxed(text: str, found: str | None) -> None:
    """Braces are balanced, the last box decides, and an unclosed one is no answer."""
    assert extract(text, ["boxed"])[0] == found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("we get 1,234,567 in all.", 1234567),
        ("it is -3", -3),
        ("(-3)", -3),
        ("it is −3", -3),
        ("about 2.50", Fraction(5, 2)),
        ("so 3/4.", Fraction(3, 4)),
        ("so -3 / 4", Fraction(-3, 4)),
        ("1, 2, 3", 3),
        ("3.", 3),
        # A minus after a number, letter or closing bracket subtracts: it is no sign.
        ("x = 10-3", 3),
        ("(4)-3", 3),
        ("a-3", 3),
        ("it is 0.5", Fraction(1, 2)),
        ("it is .5", Fraction(1, 2)),
        ("it is -.5", Fraction(-1, 2)),
    ],
)
def test_last_number(text: str, value: int | Fraction) -> None:
    """The last number as a reader sees it: its sign, separators, decimals and fraction bar belong to it."""
    found, policy = extract(text, ["last_number"])
    assert policy == "last_number"
    assert parse_number(found or "") == value


@pytest.mark.parametrize("gold", ["5", "2.5"])
def test_last_number_does_not_take_a_tail_for_the_whole(gold: str) -> None:
    """`1/2.5` is 0.4 and `.5` is a half: the digits at the end of a number are not that number."""
    text = {"5": "it is .5", "2.5": "it is 1/2.5"}[gold]
    assert grade(text, gold, "last_number") is not Verdict.CORRECT


@pytest.mark.parametrize("text", ["", "no number", "\n", "</think>"])
@pytest.mark.parametrize("policies", [(policy,) for policy in ALL] + [ALL])
def test_nothing_found(text: str, policies: tuple[str, ...]) -> None:
    """Nothing found is said as such: no answer and no policy that decided."""
    assert extract(text, policies) == (None, "")
    assert grade(text, "5", *policies) is Verdict.UNPARSED


@pytest.mark.parametrize(
    ("policies", "found"),
    [
        (("answer_line", "boxed", "last_number"), ("1", "answer_line")),
        (("boxed", "answer_line", "last_number"), ("2", "boxed")),
        (("last_number", "boxed"), ("3", "last_number")),
        (("boxed",), ("2", "boxed")),
    ],
)
def test_policies_are_tried_in_order(policies: tuple[str, ...], found: tuple[str, str]) -> None:
    """The order given decides, not the order in the text."""
    assert extract("Answer: 1\nso \\boxed{2} and 3", policies) == found


@pytest.mark.parametrize("box", [r"\boxed{}", r"\boxed{ }", r"\boxed{5", r"\fbox{}", r"Answer: \boxed{}"])
def test_an_empty_place_ends_the_search(box: str) -> None:
    """R9: an empty box then "and 5" is no answer, even where the last number would count."""
    assert extract(f"{box} and\n5", ["answer_line", "boxed", "last_number"])[0] is None
    assert grade(f"{box} and\n5", "5", *ALL) is Verdict.UNPARSED


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<think>Answer: 9</think>Answer: 5", Verdict.CORRECT),
        ("<think>Answer: 5</think>Answer: 9", Verdict.WRONG),
        ("<think>Answer: 5</think>done", Verdict.UNPARSED),
        ("<think>a</think>Answer: 5</think>", Verdict.UNPARSED),  # after the last one
        ("<think>Answer: 5", Verdict.UNPARSED),  # still thinking when the tokens ran out
        ("<think>a</think>Answer: 5<think>Answer: 6", Verdict.CORRECT),
        ("Answer: 5<|im_end|>Answer: 6", Verdict.CORRECT),  # R23: nothing after the end of the text
        ("Answer: 6</s>Answer: 5", Verdict.WRONG),
    ],
)
def test_thinking_is_not_the_answer(text: str, verdict: Verdict) -> None:
    """Only what stands after the last </think> is the response."""
    assert grade(text, "5") is verdict


# --- comparison -----------------------------------------------------------------------------------

HUGE = "7" * 3000


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("5", "5"),
        ("005", "5"),
        ("+5", "5"),
        ("5.0", "5"),
        ("5.", "5"),
        ("- 5", "-5"),
        ("−5", "-5"),
        ("－５", "-5"),
        ("0.50", "1/2"),
        (".5", "1/2"),
        ("-.5", "-1/2"),
        ("2/4", "1/2"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\tfrac12", r"\frac{1}{2}"),
        (r"-\frac{1}{2}", "-0.5"),
        (r"\frac{-1}{2}", "-0.5"),
        (r"\frac{1}{-2}", "-0.5"),
        ("1/2", r"\frac{1}{2}"),
        ("12,345", "12345"),
        ("1,234,567.50", "1234567.5"),
        ("12{,}345", "12345"),
        (r"12\,345", "12345"),
        ("１２，３４５", "12345"),
        (r"$\boxed{34}$.", "34"),
        (r"\text{34}", "34"),
        ("**34**", "34"),
        (r"\(34\)", "34"),
        ("0", "-0"),
        (HUGE, HUGE),
        (HUGE + ".0", HUGE),
    ],
)
def test_equal(answer: str, gold: str) -> None:
    """One value in two spellings is right, in both directions."""
    assert grade(f"Answer: {answer}", gold) is Verdict.CORRECT
    assert grade(f"Answer: {gold}", answer) is Verdict.CORRECT


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1,2", "12"),  # R1
        ("1{,}2", "12"),
        (r"1\,2", "12"),
        ("1,234,56", "123456"),
        ("0.10000000000000001", "0.1"),  # equal as floats, not as numbers
        ("0.333333333333", "1/3"),
        ("9007199254740993", "9007199254740992"),  # 2**53 + 1, lost in a float
        (HUGE, HUGE[:-1] + "8"),
        ("1/0", "0"),
        ("1/0", "1"),
        ("-5", "5"),
        ("5 6", "56"),
        ("5!", "5"),  # 120
        ("3**2", "32"),  # 9
        ("1e3", "1"),
        ("1_000", "1000"),  # Python's spelling, nobody else's
        ("2 2/3", "2"),  # R14
        ("2 2/3", "2/3"),
        ("4 10/3", "10"),
        ("4 10/3", "10/3"),
        ("1/2/3", "1/2"),
        (r"2\frac{1}{2}", "1/2"),
        (r"\frac{1}{2}{3}", "1/2"),
        ("0.5%", "0.5"),
        ("inf", "5"),
        ("nan", "5"),
        ("５", "6"),
    ],
)
def test_not_equal(answer: str, gold: str) -> None:
    """Nothing is rounded, glued together or cut short into equality."""
    assert grade(f"\\boxed{{{answer}}}", gold) is Verdict.WRONG


@given(st.fractions(max_denominator=10**6), st.sampled_from(["{0}/{1}", "\\frac{{{0}}}{{{1}}}", "{0} / {1}"]))
@settings(max_examples=60, deadline=None)
def test_every_fraction_is_read_exactly(value: Fraction, form: str) -> None:
    """Any fraction in any spelling has its own value, and its neighbour's is another."""
    written = form.format(value.numerator, value.denominator)
    assert parse_number(written) == value
    assert grade(f"Answer: {written}", f"{value + Fraction(1, 10**9)}") is Verdict.WRONG


@given(st.integers(-(10**30), 10**30), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_every_decimal_is_read_exactly(digits: int, places: int) -> None:
    """Any decimal, with or without thousands separators, has its own value."""
    value = Fraction(digits, 10**places)
    whole, rest = divmod(abs(digits), 10**places)
    sign = "-" if digits < 0 else ""
    tail = f".{rest:0{places}d}" if places else ""
    assert parse_number(f"{sign}{whole}{tail}") == value
    assert parse_number(f"{sign}{whole:,}{tail}") == value


@pytest.mark.parametrize("digits", [3000, 5000, 100_000])
@pytest.mark.parametrize("form", ["{}", "0.{}", "1/{}", r"\frac{{{}}}{{3}}"])
def test_long_numbers_never_raise(digits: int, form: str) -> None:
    """Python refuses to read integers over 4300 digits at once; the grader reads up to 10,000 characters."""
    number = form.format("7" * digits)
    assert grade(f"Answer: {number}", "5") is Verdict.WRONG
    assert (Grader(ALL).check_gold(number) is None) == (digits < 10_000)
    if digits < 10_000:
        assert grade(f"Answer: {number}", number) is Verdict.CORRECT
        assert grade(f"Answer: {number}", form.format("7" * (digits - 1) + "8")) is Verdict.WRONG


# --- the gold answer ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gold",
    [
        "",
        " ",
        "$$",
        "?",
        "...",
        "None",
        "N/A",
        "null",
        "nan",
        "unknown",
        "[INVALID]",
        "\\frac{",
        "{",
        "it depends on x",
        r"\text{see the figure on the next page of the book}",
        "7" * 20_000,
    ],
)
def test_a_gold_that_cannot_be_graded_is_refused_and_never_pays(gold: str) -> None:
    """R11: an unreadable gold must not reward anything, not even its own text."""
    grader = Grader(ALL)
    assert grader.check_gold(gold)
    for text in ("Answer: 5", "Answer: 120", "Answer: 12", "Answer: 0", "\\boxed{x}"):
        assert grader.score(text, gold).reward == -1.0


@pytest.mark.parametrize(
    "gold",
    [
        "5",
        "-5",
        "0.5",
        "1/2",
        r"\frac{1}{2}",
        "12,345",
        "$5$",
        HUGE,
        "x",
        "[0,1)",
        r"\{1,2\}",
        "5 cm",
        "Yes",
        "(B)",
        r"\sqrt{2}",
    ],
)
def test_a_gold_that_can_be_graded(gold: str) -> None:
    """Every kind that some stage compares is accepted as a gold."""
    assert Grader(ALL).check_gold(gold) is None


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict", "reward", "extracted", "stage"),
    [
        ("Answer: 5", Verdict.CORRECT, 1.0, "5", "answer_line: number"),
        (r"\boxed{6}", Verdict.WRONG, -1.0, "6", "boxed: number"),
        ("Answer: five", Verdict.WRONG, -1.0, "five", "answer_line: words"),
        (r"\boxed{}", Verdict.UNPARSED, -1.0, None, "boxed: empty"),
        ("5", Verdict.UNPARSED, -1.0, None, "nothing found"),
    ],
)
def test_score(text: str, verdict: Verdict, reward: float, extracted: str | None, stage: str) -> None:
    """Section 2.4: +1 or -1, with what was read and the stage that decided."""
    score = Grader(("answer_line", "boxed")).score(text, "5")
    assert (score.verdict, score.reward, score.extracted, score.stage) == (verdict, reward, extracted, stage)
    assert score.correct is (verdict is Verdict.CORRECT)
    assert score.parts == {"grader": reward}


def test_the_scorer_grades_by_default() -> None:
    """Without functions the reward is the grader's, and a prompt without an answer never pays."""
    config = load_config({"model.path": "m", "data.source": "d.jsonl"})
    scorer = Scorer(config.reward)
    assert scorer.has_correctness
    texts = ["Answer: 7", "\\boxed{8}", "x"]
    verdicts = {
        answer: [s.verdict for s in scorer.score(_prompt(answer), texts, [[1], [2], [3]])] for answer in ("7", None)
    }
    assert verdicts["7"] == [Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED]
    assert verdicts[None] == [Verdict.ERROR, Verdict.ERROR, Verdict.UNPARSED]


def _prompt(answer: str | None) -> Prompt:
    return Prompt(id="p", messages=None, text="q", answer=answer, source="s", token_ids=np.zeros(1, np.int32))


def test_the_grader_works_off_the_main_thread() -> None:
    """R20: the same verdicts in a thread and inside an event loop."""

    async def inside() -> Verdict:
        return grade("\\boxed{5}", "5")

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(grade, "\\boxed{5}", "5").result() is Verdict.CORRECT
    assert asyncio.run(inside()) is Verdict.CORRECT


# --- no text can break it -------------------------------------------------------------------------


@given(st.one_of(ANY_TEXT, PIECES), st.one_of(st.sampled_from(["5", "1/2", "0.1"]), ANY_TEXT))
@example("Answer: \x00", "5")
@example("\ud800\\boxed{\udfff}", "\ud800")
@example("答案：½", "1/2")
@settings(max_examples=200, deadline=None)
def test_never_raises(text: str, gold: str) -> None:
    """Whatever a model writes, there is a verdict; and it pays only for a readable gold."""
    for policies in [(policy,) for policy in ALL] + [ALL]:
        score = Grader(policies).score(text, gold)
        assert score.reward in (1.0, -1.0)
        assert (score.reward == 1.0) == (score.verdict is Verdict.CORRECT)
        if score.verdict is Verdict.CORRECT:
            assert Grader(policies).check_gold(gold) is None or score.extracted == gold.strip()


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed" + "{" * 100_000,
        "\\boxed{" * 20_000,
        "\\boxed{" + "{}" * 50_000,
        "Answer: " + "{" * 100_000,
        "Answer: " + "-" * 100_000,
        "Answer: " + "\\text{" * 20_000,
        "answer" * 20_000,
        "answer" + " " * 20_000,
        "answer is" + " " * 20_000,
        "answer" + "*" * 20_000,
        "1" * 100_000,
        "1" + ",111" * 10_000 + ",1",
        "1/" * 50_000,
        ("1" + " " * 100) * 1_000,
        "</think>" * 20_000,
    ],
    ids=lambda text: f"{text[:9]!r}*{len(text)}",
)
def test_hostile_text_takes_under_a_second(settled: None, text: str) -> None:
    """The time is linear in the text, so that no response can hang a run."""
    start = time.process_time()
    assert grade(text, "5", *ALL) is not Verdict.CORRECT
    assert extract(text, ["last_number"])[1] in ("", "last_number")
    assert time.process_time() - start < 1.0
