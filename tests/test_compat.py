r"""The verl-math-dapo scorer: each rule of the published one, its misses and its false hits.

The rules are facts of verl 4f80e46, `verl/utils/reward_score/math_dapo.py` (P in the reference
notes); the cases were worked out by hand from them, the reasoning beside each. Outside the test
suite the scorer was compared with that file itself, verdict and prediction, on 2.1 million pairs of
text and gold answer: the only difference is `test_missing_answer_never_pays`.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo.reward.compat import VerlMathDapo
from dapo.types import Verdict

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=[]), max_size=200)  # NUL and surrogates included
WORDS = ["Answer:", "answer :\n", "\\boxed{", "\\text{", "\\frac", "sqrt", "{", "}", "$", "=", ",", "1", "2", " ", "\n"]
RARE = ["−", "²", "\x00", "\ud800", "[INVALID]", '"', "units", "^\\circ", "\t"]
PIECES = st.lists(st.sampled_from([*WORDS, *RARE]), max_size=40).map("".join)


def found(text: str, gold: str = "0") -> str | None:
    """What is compared with the gold answer."""
    return VerlMathDapo().score(text, gold).extracted


def pays(answer: str, gold: str) -> bool:
    """Whether an answer line with this answer is right."""
    return VerlMathDapo().score(f"Answer: {answer}", gold).correct is True


# --- where the answer is looked for ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "prediction"),
    [
        ("Answer: 34", "34"),
        ("aNSWER: 34", "34"),  # case is ignored
        ("Answer \t:\n 34", "34"),  # white space around the colon, line ends included
        ("Answer:\n\n34\nbye", "34"),  # ... so an empty answer takes the next line with anything on it
        ("Final Answer: 34", "34"),  # no boundary before the word
        ("Answer: 5\nAnswer: 7", "7"),  # the last line
        ("Answer: 5\nAnswer:", "5"),  # but a last one without anything after it is no match
        ("Answer: 5\nAnswer: ", ""),  # a space is something: it becomes the empty answer
        ("Answer: 5 Answer: 7", "5Answer:7"),  # one line, one match: the first takes all of it
        ("Answer: 34\r\nbye", "34"),  # \r belongs to the line and is stripped at the end
        ("Answer: 34<|im_end|>", "34<|im_end|>"),  # EOS is for the caller to leave out
        ("Anſwer: 34", "34"),  # the long s is an s when case is ignored
        ("Answer：34", None),  # a full-width colon is none
        ("the answer is 34", None),
        ("34", None),
        ("", None),
    ],
)
def test_answer_line(text: str, prediction: str | None) -> None:
    r"""The last match of "answer", colon, rest of a line."""
    assert found(text) == prediction


def test_tail() -> None:
    """Only the last 300 characters are read: "Answer: 34" has 10, so it stands whole before 290 more."""
    assert found("Answer: 34" + "\n" * 290) == "34"
    assert found("Answer: 34" + "\n" * 291) is None  # "nswer: 34" is left
    assert found("Answer: 9\n" + "x" * 270 + "\nAnswer: 34") == "34"
    assert found("Answer: 34\n" + "x" * 320) is None  # a known miss: right, but said too early
    assert found("Answer: " + "1" * 292) == "1" * 292  # 300 characters in all
    assert found("Answer: " + "1" * 293) is None


# --- the rules of normalisation -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "prediction"),
    [
        # after the last =
        ("x = 5", "5"),
        ("x == y = 7", "7"),
        ("5 =", ""),
        # replacements, in order
        ("a cat and an ox", "catandox"),  # articles with their space, then every other space
        ("area 5", "are5"),  # ... which also end words
        ("$5.$", "5"),  # a full stop before a dollar sign
        (r"\$5", "5"),
        (r"5\ 000", "5000"),
        ("1\t2", "1\t2"),  # tabs stay inside
        (r"\mbox{cold}", "cold"),  # mbox is text
        (r"x\text{ and }y", "x,y"),
        (r"x,\text{ and }y", "x,y"),
        (r"1\text{ and }2", "12"),  # by way of "1,2", whose comma goes at the end
        (r"5\text{ m}", "5"),
        (r"5\text{ m}^2", "5"),  # m becomes \text{}, then \text{}^2 goes
        (r"5\text{ cm}^3", "5"),  # the same by way of the unit
        (r"5\text{ m}^4", "5^4"),  # only 2 and 3
        # removed words, inside others too
        ("5 square units", "5"),
        ("5 ways", "5"),
        ("always", "al"),
        ("120 degrees", "120"),
        ("3 km", "3"),
        ("issue", "is"),
        ("5 dollar", "5dollar"),  # plurals alone are known
        ("inintegerstegers", "integers"),  # one pass: what a removal joins up stays
        ("unsquareits", ""),  # ... except for what is removed later: square before units
        # removed marks
        (r"5^\circ", "5"),
        (r"5^{\circ}", "5"),
        ("5°", "5°"),
        (r"5\mathrm{th}", "5"),
        (r"5\text{th}", "5th"),
        (r"1\;000", "1000"),
        (r"1,\!000", "1000"),
        ("1{,}000", "1000"),
        ('"yes"', "yes"),
        (r"1,2,\ldots", "12"),
        (r"1,2,\dots", "12"),
        # the first $...$ alone
        ("so $5$ or $6$ then", "5"),
        ("it is $5", "itis5"),  # unpaired: nothing is left out
        # wrappers
        (r"\text{no}", "no"),
        (r"\textbf{no}", "no"),
        (r"\overline{AB}", "AB"),
        (r"\boxed{5}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),  # a box reaches to the last brace
        (r"\textbf{a_{1}}", "a_{1}"),  # others to the first; what is left over is the same here
        (r"\text{a\textbf{b}}c", "abc"),  # by way of a\textbf{b}c: \text ends at the first brace
        (r"\boxed{5} and \boxed{6}", r"5}and\boxed{6"),  # from the first box to the last brace
        (r"\boxed{5", r"\boxed{5"),  # unclosed
        (r"\mathbf{5}", r"\mathbf{5}"),
        # shorthand
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac123", r"\frac{1}{2}3"),
        (r"\frac1{2}", r"\frac{1}{{}2}"),  # the brace is taken for the second digit
        (r"\dfrac12", r"\dfrac{1}{2}"),
        (r"\frac1", r"\frac1"),  # needs two
        (r"\sqrt3", r"\sqrt{3}"),
        (r"\sqrt[3]{5}", r"\sqrt{[}3]{5}"),
        (r"\sqrt\frac12", r"\sqrt{\}frac{1}{2}"),
        # digits
        ("1,234", "1234"),
        ("1,2", "12"),
        (",5,", "5"),
        ("1,234.5", "1,234.5"),  # a point is no digit
        ("-1,234", "-1,234"),  # nor is a sign
        ("1,②", "1②"),  # but this is one
        # the end
        ("\u00a05\t", "5"),
        ("0", "0"),
    ],
)
def test_normalisation(answer: str, prediction: str) -> None:
    """What an answer becomes; the gold answer goes through the same, so it then equals itself."""
    assert found(f"Answer: {answer}") == prediction
    assert pays(answer, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("a\nb", "ab"),  # no answer line holds a line end
        ("$1$\n$2$", "1"),
    ],
)
def test_gold_of_two_lines(gold: str, answer: str) -> None:
    """Each line of a gold answer is handled alone, so no prediction can equal it."""
    assert not pays(answer, gold)


def test_gold_is_normalised() -> None:
    """Gold answers lose the same marks; a text unit written over a line end only occurs in them."""
    assert pays("1234", "1,234")
    assert pays("5", r"$x=5\text{ cm}^2$")
    assert pays("5", "5\\text{\n}")
    assert pays("5", "5\\text{\ns}")
    assert pays(r"\frac{1}{2}", r"\frac12")


# --- known misses and false hits (REFERENCE.md, section 3) ----------------------------------------


@pytest.mark.parametrize(
    ("text", "gold", "prediction"),
    [
        ("Answer: 5.", "5", "5."),  # a full stop goes only before $
        ("**Answer:** 5", "5", "**5"),  # the emphasis is closed after the colon
        ("**Answer: 5**", "5", "5**"),
        ("Answer: 005", "5", "005"),  # spellings, not values
        ("Answer: 5.0", "5", "5.0"),
        ("Answer: 0.5", r"\frac{1}{2}", "0.5"),
        ("Answer: 1/2", r"\frac{1}{2}", "1/2"),
        (r"Answer: \dfrac{1}{2}", r"\frac{1}{2}", r"\dfrac{1}{2}"),
        (r"so \boxed{5}", "5", None),  # no answer line, and boxes are not looked for
        (r"Answer: 50\%", "50", r"50\%"),
        ("Answer: −5", "-5", "−5"),  # U+2212 is not the hyphen
        (r"Answer: \(5\)", "5", r"\(5\)"),
        ("答案：5", "5", None),
    ],
)
def test_known_misses(text: str, gold: str, prediction: str | None) -> None:
    """Right answers that are paid -1."""
    score = VerlMathDapo().score(text, gold)
    assert score.extracted == prediction
    assert (score.verdict, score.correct) == (Verdict.UNPARSED if prediction is None else Verdict.WRONG, False)
    assert score.reward == -1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1,2", "12"),  # a list of two
        ("1,2", "1, 2"),
        ("12", r"1\text{ and }2"),
        ("x=5 or y=4", "4"),  # after the last =
        ("4 != 5 = 4", "4"),
        ("$4$ or $5$", "4"),  # after the first $...$
        ("4 km", "4 degrees"),  # any unit is as good as any other
        ("always", "al"),
    ],
)
def test_known_false_hits(answer: str, gold: str) -> None:
    """Wrong or hedged answers that are paid +1."""
    score = VerlMathDapo().score(f"Answer: {answer}", gold)
    assert (score.verdict, score.correct, score.reward) == (Verdict.CORRECT, True, 1.0)
    assert (score.parts, score.stage) == ({"grader": 1.0}, "verl-math-dapo")


# --- strict box -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{34}", "34"),
        (r"\boxed{5} no, \boxed{7}", "7"),  # the last
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),  # braces balanced
        (r"\boxed{5} \boxed{7", None),  # the last one is open, and the first does not stand in
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\}", "\\"),  # an escaped brace closes
        (r"\boxed {5}", None),
        (r"\fbox{5}", None),
        (r"\boxed{}", ""),
        (r"\boxed{ 5 }", " 5 "),  # as written
        ("Answer: 5", None),
        (r"\boxed{34}" + "x" * 90, "34"),  # 10 characters and 90 make the 100 that are read
        (r"\boxed{34}" + "x" * 91, None),
    ],
)
def test_strict_box(text: str, content: str | None) -> None:
    """The last box of the last 100 characters, compared as written."""
    score = VerlMathDapo(strict_box=True).score(text, "34")
    assert score.extracted == content
    assert score.correct is (content == "34")
    assert (score.verdict is Verdict.UNPARSED) is (content is None)


def test_strict_box_compares_as_written() -> None:
    """Nothing is normalised on either side."""
    strict = VerlMathDapo(strict_box=True)
    assert strict.score(r"\boxed{1,234}", "1,234").correct
    assert not strict.score(r"\boxed{1,234}", "1234").correct
    assert not strict.score(r"\boxed{5}", " 5").correct


# --- gold answers, and any text -------------------------------------------------------------------


@pytest.mark.parametrize("gold", ["", " \n", "$$", "units", r"5\text{ m}=", "[INVALID]", "x=[INVALID]"])
def test_gold_that_pays_nothing_said_is_refused(gold: str) -> None:
    """An empty or a missing answer would equal these."""
    assert VerlMathDapo().check_gold(gold)


def test_usable_gold() -> None:
    """Any other text can be compared; the strict box refuses only what is blank."""
    strict = VerlMathDapo(strict_box=True)
    for gold in ("5", "-5", r"\frac{1}{2}", "yes", "0", "5."):
        assert VerlMathDapo().check_gold(gold) is None
        assert strict.check_gold(gold) is None
    assert strict.check_gold("units") is None
    assert strict.check_gold(" ")


def test_missing_answer_never_pays() -> None:
    """The one meant difference: verl compares "[INVALID]" for a missing answer, so this gold answer would pay it."""
    score = VerlMathDapo().score("I don't know", "[INVALID]")
    assert (score.verdict, score.correct, score.reward) == (Verdict.UNPARSED, False, -1.0)
    assert pays("[INVALID]", "[INVALID]")  # said, it is an answer like any other


@settings(max_examples=200, deadline=None)
@given(text=ANY_TEXT | PIECES, gold=ANY_TEXT | PIECES, strict=st.booleans())
def test_any_text_has_a_verdict(text: str, gold: str, strict: bool) -> None:
    """No text or gold answer raises; what stands before the tail changes nothing."""
    scorer = VerlMathDapo(strict)
    score = scorer.score(text, gold)
    assert score.verdict in (Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED)
    assert (score.extracted is None) is (score.verdict is Verdict.UNPARSED)
    assert score.reward == (1.0 if score.correct else -1.0)
    long = text.rjust(300, "\n")
    assert scorer.score("Answer: 1 \\boxed{1}" + long, gold) == scorer.score(long, gold)


@pytest.mark.parametrize("piece", ["\\text{", "\\boxed{", "$", "frac", "{", "Answer:", "answer ", "\n", " ", "="])
def test_a_megabyte_is_no_trouble(piece: str) -> None:
    """Linear in both: quadratic work on 1 MB would take minutes."""
    big = piece * (1_000_000 // len(piece))
    start = time.process_time()
    for strict in (False, True):
        VerlMathDapo(strict).score(big, "5")
        VerlMathDapo(strict).score("Answer: 5", big)
    assert time.process_time() - start < 20
