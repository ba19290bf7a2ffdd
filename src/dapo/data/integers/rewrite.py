"""From a problem and its answer to a problem whose answer is an integer, by rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .bounded import LatexError
from .check import accept
from .evidence import free_letters, is_chinese, list_or_number, objection, stands_in
from .forms import LIMIT, REASONS, Form, Refused, Target
from .latex import MAX_LENGTH
from .surface import canonical_integer, classify, cleaned, is_grouped
from .wording import sentences

METHOD = "the template with the parameters in place, minus the answer, simplifies to 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A problem that has an integer for its answer now.

    Attributes:
        problem: The original text as it was, a blank line, and the added sentences.
        answer: The integer.
        form: The family, one of `forms.FAMILIES`, or `llm`.
        proof: The template, the parameters, what is asked for, and what it was checked against; plain JSON.
    """

    problem: str
    answer: str
    form: str
    proof: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A problem that is left alone.

    Attributes:
        reason: A name from REASONS.
    """

    reason: str

    def __post_init__(self) -> None:
        if self.reason not in REASONS:
            raise ValueError(f"no such reason: {self.reason}")


def rewrite(problem: str, answer: str, language: str | None = None) -> Rewrite | Refusal | None:
    """Ask for an integer that an answer determines, and that determines the answer as far as an integer can.

    Args:
        problem: The text; it is never altered, only added to.
        answer: The answer in LaTeX or plain, without its derivation.
        language: Of the added sentences, `en` or `zh`; by default Chinese where a tenth of the text is.

    Returns:
        None if the answer is an integer already (`canonical_integer` gives it), or else a rewrite that
        passed every check, or the reason for which there is none.

    >>> done = rewrite("Simplify.", "11-2\\\\sqrt{6}")
    >>> done.answer, done.proof["template"], done.proof["target"]
    ('19', 'k-m\\\\sqrt{n}', 'k+m+n')
    """
    if len(answer) > MAX_LENGTH:
        return Refusal(reason="too_long")
    if not answer.strip():
        return Refusal(reason="empty")
    if is_grouped(answer) and list_or_number(problem) != "number":
        return Refusal(reason="ambiguous_comma")
    if canonical_integer(answer) is not None:
        return None
    reason = objection(problem)
    if reason:
        return Refusal(reason=reason)
    try:
        return _rewritten(problem, answer, is_chinese(problem, language))
    except (Refused, LatexError) as refused:
        return Refusal(reason=refused.reason)


def _rewritten(problem: str, answer: str, chinese: bool) -> Rewrite:
    """The rewrite, or an exception with the reason."""
    letters = free_letters(f"{problem} ${answer}$")

    def again(text: str) -> Form:
        return classify(text, problem, letters)

    form = again(answer)
    target, prompt = choose(form, problem, chinese)
    accept(form, target, prompt, again)
    return Rewrite(problem=prompt, answer=str(target.value), form=form.family, proof=proof_of(form, target, answer))


def choose(form: Form, problem: str, chinese: bool) -> tuple[Target, str]:
    """The first target that is small and does not stand in the prompt, with the prompt.

    Raises:
        Refused: `leaks` if some target was small enough, or else `too_large`.
    """
    reason = "too_large"
    for target in form.targets:
        if abs(target.value) >= LIMIT:
            continue
        prompt = f"{problem}\n\n{sentences(form, target, chinese=chinese)}"
        if not stands_in(target.value, prompt):
            return target, prompt
        reason = "leaks"
    raise Refused(reason)


def proof_of(form: Form, target: Target, answer: str) -> dict[str, Any]:
    """What a reader needs to check a rewrite by hand."""
    parameters = dict(form.parameters)
    if form.family == "polynomial":
        parameters = {form.variable: target.at}
    return {
        "original": cleaned(answer),
        "template": form.template,
        "parameters": parameters,
        "target": target.text,
        "second_form": form.second,
        "difference": 0,
        "checked": METHOD,
    }
