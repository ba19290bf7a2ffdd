r"""Scorers that repeat the decisions of published ones, mistakes included.

`VerlMathDapo` decides as verl's `math_dapo` scorer does, for those who reproduce the DAPO paper: its
scores were earned under this scorer, so a better one would train on other rewards. For anything
else use `Grader`, which compares values where this one compares spellings.

Facts from verl 4f80e46 (the paper's core), `verl/utils/reward_score/math_dapo.py`; its code is the
same at b178a3c (January 2026). By 5756533 verl looked for a box where no answer line is found; that
came after the paper and is not repeated. It is called as `verl/workers/reward_manager/dapo.py`
calls it: the default mode, on the response without its EOS.
"""

from __future__ import annotations

import re

from dapo.reward.grader import RIGHT, WRONG
from dapo.types import Score, Verdict

STAGE = "verl-math-dapo"
TAIL, STRICT_TAIL = 300, 100  # characters; what stands before them is never read

# \s* crosses line ends, so a bare "Answer:" takes the next line that has anything on it.
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_NO_ANSWER = "[INVALID]"  # what the published scorer compares when it finds no answer
_BOX = r"\boxed{"

# Plain replacements, one after the other. The order decides: "\text{m}^2" only becomes "" by way of
# "\text{}^2", and what a removal joins up counts only for the entries after it.
_REWRITES: tuple[tuple[str, str], ...] = (
    *((article, "") for article in ("an ", "a ")),  # also the end of a longer word: "area 5" is "are5"
    (".$", "$"),  # a full stop is forgiven only before a dollar sign
    ("\\$", ""),  # an amount of money
    ("\\ ", ""),
    (" ", ""),  # spaces alone; tabs and other white space stay
    ("mbox", "text"),
    (r",\text{and}", ","),
    (r"\text{and}", ","),
    (r"\text{m}", r"\text{}"),
)
# Removed wherever they stand, inside words too; the order is part of the behaviour here as well.
_DROPPED: tuple[str, ...] = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units"),
    r"\ldots",
    *("sue", "points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters"),
    *("meals", "edges", "students", "childrentickets", "multiples"),
    *(rf"\text{{{content}}}" for content in ("s", ".", "\ns")),
    *(rf"\text{{}}^{power}" for power in "23"),
    *(rf"\text{{{content}}}" for content in ("\n", "")),
    *(r"\mathrm{th}", r"^\circ", r"^{\circ}"),
    *(r"\;", r",\!", "{,}", '"', r"\dots"),
)
_SHORTHAND = (
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),  # \frac12
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),  # \sqrt3
)


class VerlMathDapo:
    """Scores one response against one gold answer as verl's `math_dapo` does.

    The published scorer raises on no pair of strings, so neither does this one and no verdict is
    ERROR. One difference is meant: a response without an answer is never correct, not even where
    the gold answer is the "[INVALID]" that stands for a missing one (`check_gold` refuses it).

    Args:
        strict_box: compare the last box of the last 100 characters with the gold answer as it is
            written (verl's `strict_box_verify`; the paper's runs leave it off).
    """

    def __init__(self, strict_box: bool = False) -> None:
        self.strict_box = strict_box

    def check_gold(self, gold: str) -> str | None:
        """None, or why this gold answer can't be used: one that would pay an empty or a missing answer."""
        if not gold.strip():
            return "it is empty"
        if self.strict_box:
            return None
        plain = _normalise(gold)
        if not plain:
            return "nothing is left of it once units, quotes and signs are removed, so an empty answer would equal it"
        if plain == _NO_ANSWER:
            return f"{_NO_ANSWER} stands for a missing answer in this scorer"
        return None

    def score(self, text: str, gold: str) -> Score:
        r"""Reward +1 or -1; `extracted` is the prediction in the form that was compared.

        Args:
            text: the response, decoded up to its first EOS.
            gold: an answer that `check_gold` accepts.

        >>> VerlMathDapo().score(r"Answer: $\frac12$ units", r"\frac{1}{2}").verdict
        <Verdict.CORRECT: 'correct'>
        >>> VerlMathDapo().score("Answer: 5.", "5").verdict
        <Verdict.WRONG: 'wrong'>
        """
        if self.strict_box:
            prediction, target = _last_box(text[-STRICT_TAIL:]), gold
        else:
            line = _last_answer(text[-TAIL:])
            prediction, target = None if line is None else _normalise(line), _normalise(gold)
        if prediction is None:
            verdict = Verdict.UNPARSED
        else:
            verdict = Verdict.CORRECT if prediction == target else Verdict.WRONG
        right = verdict is Verdict.CORRECT
        reward = RIGHT if right else WRONG
        return Score(
            verdict=verdict,
            correct=right,
            reward=reward,
            parts={"grader": reward},
            extracted=prediction,
            stage=STAGE,
        )


def _last_answer(text: str) -> str | None:
    """The rest of the line after the last "Answer:"; a later one on the same line belongs to that rest."""
    found = _ANSWER.findall(text)
    return found[-1] if found else None


def _last_box(text: str) -> str | None:
    r"""Content of the last \boxed{...}; None without one or where its braces don't close (`\}` counts as one)."""
    _, opener, rest = text.rpartition(_BOX)
    if not opener:
        return None
    depth = 1
    for place, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:place]
    return None


def _normalise(answer: str) -> str:
    r"""The spelling that is compared, of predictions and gold answers alike; linear in its length.

    >>> _normalise(r"The area is $x=1,234\text{ cm}^2$")
    '1234'
    """
    answer = answer.rpartition("=")[2]
    for old, new in _REWRITES:
        answer = answer.replace(old, new)
    for unwanted in _DROPPED:
        answer = answer.replace(unwanted, "")
    answer = "\n".join(_unwrap_line(line) for line in answer.split("\n"))
    for pattern, spelled_out in _SHORTHAND:
        answer = pattern.sub(spelled_out, answer)
    answer = answer.replace("$", "")
    digits = answer.replace(",", "")
    return digits if digits.isdigit() else answer.strip()


def _unwrap_line(line: str) -> str:
    """The first $...$ alone if the line has one, then the contents of wrappers in place of them."""
    parts = line.split("$", 2)
    if len(parts) == 3:
        line = f"${parts[1]}$"
    for opener in (r"\text{", r"\textbf{", r"\overline{"):
        line = _unwrap(line, opener)
    return _unwrap(line, _BOX, to_last_brace=True)


def _unwrap(line: str, opener: str, to_last_brace: bool = False) -> str:
    """Each `opener...}` replaced by its content, up to the first closing brace (nesting is not seen) or the last."""
    kept, done = [], 0
    while (start := line.find(opener, done)) >= 0:
        inside = start + len(opener)
        close = line.rfind("}", inside) if to_last_brace else line.find("}", inside)
        if close < 0:
            break
        kept += [line[done:start], line[inside:close]]
        done = close + 1
    return "".join(kept) + line[done:]
