r"""Stored prompts and solutions: the bare problem out of the template around it, the answer out of a solution.

Published sets store problems with the words of whoever used them last. Training and evaluation word problems
themselves (`data.template`), so what is known of such words is taken off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dapo.data.template import DAPO_WORDING
from dapo.errors import DataError

_DAPO_BEFORE, _DAPO_AFTER = (part.strip() for part in DAPO_WORDING.split("{{ problem }}"))

# Instructions that stand before or after the problem, as regular expressions; case and blanks don't count.
_STEPS = r"(?:please |let's |let us )?(?:think|reason) step by step"
_PUT = r"(?:put|output|write|give|return) (?:your |the )?(?:final )?answer (?:within|in|inside|after)"
_BEFORE = (
    re.escape(_DAPO_BEFORE),
    rf"{_STEPS},? and {_PUT} \\boxed\{{\}}\.?",
    r"Solve the following math problem step by step\. Write your reasoning clearly using LaTeX\. Box the final answer "
    r"using \\boxed\{\}\.?",
    r"(?:Question|Problem):",
)
_AFTER = (
    re.escape(_DAPO_AFTER),
    rf"{_STEPS},? and {_PUT} \\boxed\{{\}}\.?",
    rf'{_STEPS},? and {_PUT} "?####"?\.?',
)
_AFTER_A_SENTENCE = (  # short ones may be words of the problem, unless they are a sentence or a line of their own
    rf"{_STEPS}\.?",
    rf"(?:Please )?{_PUT} \\boxed\{{\}}\.?",
    r"(?:Answer|Solution):",
)


def _any_of(patterns: tuple[str, ...]) -> str:
    """One of them, however their blanks are set."""
    return "(?:" + "|".join(re.sub(r"(?:\\ | )+", r"\\s+", pattern) for pattern in patterns) + ")"


_LEADING = re.compile(rf"\s*{_any_of(_BEFORE)}\s*", re.IGNORECASE)
_TRAILING = re.compile(
    rf"(?:\s*{_any_of(_AFTER)}|(?:(?<=[.?!:。？！$)\]}}])\s*|\s*\n\s*){_any_of(_AFTER_A_SENTENCE)})\s*\Z", re.IGNORECASE
)
_TAIL = 400  # characters in which a trailing instruction is looked for
_HINTS = ("step", "answer", "solution", "####", "boxed")  # every trailing instruction holds one
_MOST = 8  # instructions taken off either end

# A whole conversation stored as text: the user's turn between the marks of common chat templates. (the mark before
# the turn, which stands there once; the whole text)
_CHATS = tuple(
    (mark, re.compile(rf"\A\s*{pattern}\s*\Z", re.DOTALL))
    for mark, pattern in (
        (
            "<|im_start|>user\n",
            r"(?:<\|im_start\|>system\n.*?<\|im_end\|>\s*)?<\|im_start\|>user\n(?P<problem>.*?)<\|im_end\|>"
            r"(?:\s*<\|im_start\|>assistant\s*(?:<think>)?)?",
        ),
        (
            "<|start_header_id|>user<|end_header_id|>\n\n",
            r"(?:<\|begin_of_text\|>)?(?:<\|start_header_id\|>system<\|end_header_id\|>.*?<\|eot_id\|>\s*)?"
            r"<\|start_header_id\|>user<\|end_header_id\|>\n\n(?P<problem>.*?)<\|eot_id\|>"
            r"(?:\s*<\|start_header_id\|>assistant<\|end_header_id\|>)?",
        ),
        (
            "<｜User｜>",
            r"(?:<｜begin▁of▁sentence｜>)?[^<]*<｜User｜>(?P<problem>.*?)<｜Assistant｜>\s*(?:<think>)?",
        ),
        ("[INST]", r"(?:<s>\s*)?\[INST\](?P<problem>.*?)\[/INST\]"),
        (
            "User:",
            r"A conversation between User and Assistant\..*?\bUser:(?P<problem>.*?)\n?Assistant:\s*(?:<think>)?",
        ),
    )
)


def bare(problem: Any, where: str) -> str:
    r"""The problem's own text: of a message list the user's turn, without the usual instructions.

    >>> bare([{"role": "user", "content": r"2+2? Put your final answer in \boxed{}."}], "row 1")
    '2+2?'

    Raises:
        DataError: it is neither a text nor a conversation of one user's turn.
    """
    if isinstance(problem, (list, tuple)):
        turns = [turn for turn in problem if not (isinstance(turn, Mapping) and turn.get("role") == "system")]
        problem = turns[0].get("content") if len(turns) == 1 and isinstance(turns[0], Mapping) else None
        if problem is None:
            raise DataError(f"{where}: the prompt should be a text or the messages of one user's turn")
    if not isinstance(problem, str):
        raise DataError(f"{where}: the prompt is {type(problem).__name__}, not a text; set data.prompt_column")
    text = problem
    for mark, chat in _CHATS:
        found = chat.match(text) if text.count(mark) == 1 else None
        if found is not None:
            text = found["problem"]
    return _without_instructions(text.strip())


def _without_instructions(text: str) -> str:
    for _ in range(_MOST):
        match = _LEADING.match(text)
        if match is None:
            break
        if match.end() == len(text):  # nothing but an instruction: then it is the problem
            return text.strip()
        text = text[match.end() :]
    tail = text[-_TAIL:].casefold()
    if not any(hint in tail for hint in _HINTS):
        return text.strip()
    for _ in range(_MOST):
        match = _TRAILING.search(text, max(0, len(text) - _TAIL))
        if match is None or not text[: match.start()].strip():
            break
        text = text[: match.start()]
    return text.strip()


def last_boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{} (or \fbox{}) of a solution; None without a closed one.

    >>> last_boxed(r"first \boxed{1}, then \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    starts = [match.end() for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)]
    depth = 1
    for place in range(starts[-1] if starts else len(text), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[starts[-1] : place].strip()
    return None


def gsm8k_answer(text: str) -> str:
    """What stands after the last ####, without thousands separators; the text itself where there is none.

    >>> gsm8k_answer("So 2 * 600 = 1200.\\n#### 1,200"), gsm8k_answer("12")
    ('1200', '12')
    """
    if "####" not in text:
        return text
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.rpartition("####")[2]).strip()
