"""How often responses reflect on what they wrote, or turn back: by phrases, a proxy and no more.

The paper's case study (its section 4.4) shows a policy that begins to check and rethink steps. Counting
phrases says how often such words come, in right and in wrong responses; not whether the thought behind them
did anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

# What is looked for, whatever the case; English at the beginning of a word, Chinese anywhere.
_LET = r"let(?:'s|’s| me| us) "
ENGLISH = {
    "reflection": (
        r"wait\b",
        r"hold on\b",
        _LET + r"(?:double[- ]?)?(?:check|verify|re-?check|re-?examine|re-?think|reconsider)",
        r"double[- ]check",
        r"re-?(?:check|examine|think|evaluate|consider)(?:ing)?\b",
        r"is (?:this|that) (?:right|correct)\?",
        r"sanity check",
    ),
    "backtracking": (
        r"(?:i|we) (?:made|have made) (?:a|an) (?:mistake|error)",
        r"(?:this|that)(?: is| was| seems| must be| can't be|'s|’s) (?:wrong|incorrect|not right|not correct)",
        r"(?:try|start) (?:again|over|anew)\b",
        r"try (?:another|a different) (?:way|approach|method)",
        r"(?:another|a different|alternative) (?:approach|method)\b",
        r"alternatively\b",
        _LET + r"go back\b",
    ),
}
CHINESE = {
    "reflection": r"检查|验证一下|再想想|重新(?:考虑|思考|审视|检查)|等一下",
    "backtracking": r"不对|错了|有误|换(?:一)?(?:种|个)(?:方法|思路|角度)|重新(?:开始|来)",
}
PATTERNS = {
    kind: re.compile(rf"(?<![A-Za-z])(?:{'|'.join(phrases)})|{CHINESE[kind]}", re.IGNORECASE)
    for kind, phrases in ENGLISH.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhraseShare:
    """Share of the right and of the wrong responses that hold a phrase of a kind; NaN of none."""

    right: float
    wrong: float


def phrase_kinds(text: str) -> tuple[str, ...]:
    """The kinds of phrase that a response holds.

    >>> phrase_kinds("So 12. Wait, let me check: 13. Alternatively, 14.")
    ('reflection', 'backtracking')
    """
    return tuple(kind for kind, pattern in PATTERNS.items() if pattern.search(text))


def phrase_shares(responses: Iterable[tuple[Collection[str], bool]]) -> dict[str, PhraseShare]:
    """By kind: the share of responses with such a phrase, among the right and among the wrong.

    Args:
        responses: of each its `phrase_kinds`, and whether it is right.
    """
    found = list(responses)
    totals = {side: sum(right is side for _, right in found) for side in (True, False)}

    def share(kind: str, side: bool) -> float:
        hits = sum(kind in kinds for kinds, right in found if right is side)
        return hits / totals[side] if totals[side] else math.nan

    return {kind: PhraseShare(right=share(kind, True), wrong=share(kind, False)) for kind in PATTERNS}
