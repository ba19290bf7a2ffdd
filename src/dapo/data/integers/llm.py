"""A language model may word what no rule covers; what it says is believed only as far as it is checked.

The model gives a sentence, a form with letters, the letters' values and what to ask for. The form with
the values in place must equal the answer, and the model must give the same values again when it is
shown another spelling of the answer. Other values for the letters are looked for, and what is found must
be excluded by a condition that the sentence names; that there are none is the model's word alone, which is
why rules come first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy

from .bounded import LatexError
from .check import is_zero
from .evidence import is_chinese, objection, stands_in, used_letters
from .exact import exact, rational
from .forms import LIMIT, Refused
from .latex import MAX_LENGTH, parse
from .rewrite import METHOD, Refusal, Rewrite
from .rivals import has_rival
from .surface import cleaned, split

LLM_MAY_TRY = frozenset({"unsupported", "ambiguous_pair", "variables", "leaks"})
"""Reasons of a rule's refusal after which a model may be asked."""

MAX_REPLY = 20_000
MAX_SENTENCE = 1500
MAX_TARGET_DEGREE = 4

INSTRUCTION = """\
Below are a mathematics problem and its answer, which is not an integer. Write something to be added to the
problem so that the new answer is an integer from which, as far as possible, the old answer can be told.

1. Choose a form for the answer in LaTeX in which single letters stand for the integers in it. Use letters that
   the problem does not use, and neither i nor e.
2. State in the added text every condition that makes the letters' values unique: which of them are positive,
   which have no common divisor, which are not divisible by the square of any prime.
3. Ask for an integer made of all the letters, with plus, minus, times and integer factors only.
4. The added text must contain the form and what is asked for literally, and must not give the new answer away.
   It is written in {language} and tells to give that integer in place of the answer.

Reply with a single JSON object and nothing else:
{{"sentence": "the added text", "form": "k\\\\sqrt{{m}}", "parameters": {{"k": 3, "m": 5}}, "target": "k+m"}}

Problem:
{problem}

Answer:
{answer}
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply whose shape is right; nothing in it has been believed yet."""

    sentence: str
    form: str
    parameters: dict[str, int]
    target: str


def llm_rewrite(problem: str, answer: str, ask: Callable[[str], str], language: str | None = None) -> Rewrite | Refusal:
    """Have a model word the rewrite, and check all of it that can be checked.

    Args:
        problem: The text.
        answer: The answer, which the rules refused for a reason in LLM_MAY_TRY.
        ask: Sends a prompt and returns the reply's text; what it raises passes through.
        language: Of the added text, `en` or `zh`; by default that of the problem.

    Returns:
        A rewrite of the form `llm`, or the reason for which there is none: `llm_bad_reply` for a reply that
        is not of the shape asked for, `unproven` where a check failed.
    """
    if not answer.strip():
        return Refusal(reason="empty")
    reason = objection(problem)
    if reason:
        return Refusal(reason=reason)
    try:
        values = entries_of(answer)
        spelling = second_spelling(answer)
        tongue = "Chinese" if is_chinese(problem, language) else "English"
        first, value = _asked(problem, cleaned(answer), values, ask, tongue)
        second, again = _asked(problem, spelling, values, ask, tongue)
        if (first.parameters, first.form, value) != (second.parameters, second.form, again):
            raise Refused("unproven")
        _refuse_sentence(first, problem, cleaned(answer))
        prompt = f"{problem}\n\n{first.sentence}"
        _refuse_result(value, prompt)
    except (Refused, LatexError) as refused:
        return Refusal(reason=refused.reason)
    proof: dict[str, Any] = {
        "original": cleaned(answer),
        "template": first.form,
        "parameters": first.parameters,
        "target": first.target,
        "second_form": spelling,
        "difference": 0,
        "checked": METHOD,
    }
    return Rewrite(problem=prompt, answer=str(value), form="llm", proof=proof)


def _asked(
    problem: str, answer: str, values: list[sympy.Expr], ask: Callable[[str], str], tongue: str
) -> tuple[Reply, int]:
    """One question to the model: its reply, proven equal to the answer, and the integer it asks for."""
    reply = read_reply(ask(INSTRUCTION.format(problem=problem, answer=answer, language=tongue)))
    if any(str(symbol) in reply.parameters for value in values for symbol in value.free_symbols):
        raise Refused("llm_bad_reply")
    try:
        found = [parse(part, reply.parameters, extended=True) for part in _parts(reply.form)]
        equal = len(found) == len(values) and all(is_zero(f - v) for f, v in zip(found, values, strict=True))
        value = target_of(reply)
    except LatexError:
        raise Refused("unproven") from None
    if not equal:
        raise Refused("unproven")
    return reply, value


def read_reply(text: str) -> Reply:
    """The reply's JSON object, alone or in a fence.

    Raises:
        Refused: `llm_bad_reply` if it is not what was asked for.
    """
    fenced = re.search(r"```(?:json)?\s*(\{.*\})\s*```", text[:MAX_REPLY], re.S)
    try:
        told = json.loads(fenced[1] if fenced else text[:MAX_REPLY])
    except (ValueError, RecursionError):
        raise Refused("llm_bad_reply") from None
    if not isinstance(told, dict):
        raise Refused("llm_bad_reply")
    sentence, form, target = (told.get(key) for key in ("sentence", "form", "target"))
    parameters = told.get("parameters")
    if not (isinstance(sentence, str) and isinstance(form, str) and isinstance(target, str)):
        raise Refused("llm_bad_reply")
    if not isinstance(parameters, dict) or not 1 <= len(parameters) <= 12:
        raise Refused("llm_bad_reply")
    lone = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", form)))
    good = all(
        re.fullmatch("[A-Za-z]", letter)
        and letter not in "ie"
        and letter in lone
        and type(value) is int
        and abs(value) < LIMIT
        for letter, value in parameters.items()
    )
    literal = form.strip() and target.strip() and form in sentence and target in sentence
    if not good or not literal or len(sentence) > MAX_SENTENCE:
        raise Refused("llm_bad_reply")
    return Reply(sentence, form, dict(parameters), target)


def target_of(reply: Reply) -> int:
    """The integer asked for: an integer polynomial of low degree in all of the letters.

    Raises:
        Refused: `llm_bad_reply` if the target is no such polynomial.
        LatexError: If it can't be read.
    """
    expression = parse(reply.target)
    symbols = sorted(expression.free_symbols, key=str)
    if {str(symbol) for symbol in symbols} != set(reply.parameters) or not expression.is_polynomial(*symbols):
        raise Refused("llm_bad_reply")
    if expression.count_ops() > 60 or any(part.is_Pow and part.exp > MAX_TARGET_DEGREE for part in _tree(expression)):
        raise Refused("llm_bad_reply")
    value = rational(exact(parse(reply.target, reply.parameters)))
    if value is None or value.denominator != 1 or any(part.is_Rational and part.q != 1 for part in _tree(expression)):
        raise Refused("llm_bad_reply")
    return int(Fraction(value))


def _refuse_sentence(reply: Reply, problem: str, answer: str) -> None:
    """The text must hold the form and the target whole, give nothing away, and leave no other values.

    Raises:
        Refused: `llm_bad_reply`, `leaks` or `not_unique`.
    """
    for part in (reply.form, reply.target):  # `k+m` inside of `k+m+n` or `2k+m` is something else
        if not re.search(rf"(?<![\w+*^/-]){re.escape(part)}(?![\w+*^/-])", reply.sentence):
            raise Refused("llm_bad_reply")
    if not used_letters(f"{problem} ${answer}$").isdisjoint(reply.parameters):
        raise Refused("llm_bad_reply")
    plain = re.sub(r"[\s$]", "", reply.sentence)
    given = any(re.search(rf"(?<![A-Za-z]){letter}=-?\d", plain) for letter in reply.parameters)
    if given or (len(answer) > 1 and re.sub(r"\s", "", answer) in plain):
        raise Refused("leaks")
    if has_rival(_parts(reply.form), reply.target, reply.parameters, reply.sentence):
        raise Refused("not_unique")


def _tree(expression: sympy.Expr) -> list[sympy.Expr]:
    """Every part of an expression."""
    return list(sympy.preorder_traversal(expression))


def _refuse_result(value: int, prompt: str) -> None:
    """The integer must say something, be small, and not stand in the prompt."""
    if value == 0:
        raise Refused("lossy")
    if abs(value) >= LIMIT:
        raise Refused("too_large")
    if stands_in(value, prompt):
        raise Refused("leaks")


def _parts(text: str) -> list[str]:
    """The entries of a tuple in round brackets, or the text alone."""
    text = cleaned(text)
    inside = split(text[1:-1]) if text.startswith("(") and text.endswith(")") else [text]
    return inside if len(inside) > 1 else [text]


def entries_of(answer: str) -> list[sympy.Expr]:
    """The values of an answer's entries.

    Raises:
        LatexError: If the strict reader does not read it.
    """
    return [parse(part, extended=True) for part in _parts(answer)]


def second_spelling(answer: str) -> str:
    """The same answer with every entry multiplied through by 7.

    Raises:
        LatexError: `too_long` if that makes it longer than an answer may be.
    """
    parts = [f"\\frac{{7({part})}}{{7}}" for part in _parts(answer)]
    text = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
    if len(text) > MAX_LENGTH:
        raise LatexError("too_long")
    return text
