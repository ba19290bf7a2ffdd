"""The built-in grader: extract, compare in stages, say which stage decided.

The stages before the symbolic one run in the calling process; the symbolic one in worker processes
(dapo.reward.pool). Timeouts and errors are verdicts of their own and never raise into a loop.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence

from dapo.errors import RewardError
from dapo.reward.choices import choice, choose
from dapo.reward.clean import clean, too_long
from dapo.reward.compare import compare
from dapo.reward.extract import extract
from dapo.reward.golds import ASK, is_placeholder, unusable
from dapo.reward.guard import screen
from dapo.reward.pool import Pool, Question, Reply, default_size, shared_pool
from dapo.reward.read import read
from dapo.reward.truth import Truth
from dapo.reward.values import Rules, undecided
from dapo.types import Score, Verdict

RIGHT, WRONG = 1.0, -1.0  # section 2.4
TRAINING_POLICIES = ("answer_line", "boxed")
CACHE_SIZE = 100_000  # of (gold, extracted) pairs

# Both plain integers: no more needs to be read. -0 is left to the general stages.
_INTEGER = re.compile(r"\s*(?:\+|(-(?!0+\s*$)))?0*(\d+?)\s*", re.ASCII)

Decision = tuple[Verdict, str]


class Grader:
    """Grades responses against gold answers. Never raises on any text; use it from any thread.

    Args:
        policies: where the answer is looked for, in order (dapo.reward.extract).
        unevaluated: whether arithmetic left undone (`12+13`) answers a gold that is a number.
        convert_units: whether 500 cm answers 5 m.
        limit_s: seconds for the symbolic stage of one answer.
        workers: processes for the symbolic stage; None: one for each core.
        memory_mb: what one of them may take.
    """

    def __init__(
        self,
        policies: Sequence[str] = TRAINING_POLICIES,
        *,
        unevaluated: str = "wrong",
        convert_units: bool = False,
        limit_s: float = 2.0,
        workers: int | None = None,
        memory_mb: int = 1024,
    ) -> None:
        self.policies = tuple(policies)
        self._options = (unevaluated, convert_units)
        self._limits = (workers or default_size(), limit_s, memory_mb)
        self._rules = Rules(_screened, unevaluated, convert_units)  # type: ignore[arg-type]
        self._cache: OrderedDict[tuple[str, str], Decision] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_cache", "_lock")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._cache, self._lock = OrderedDict(), threading.Lock()

    @property
    def pool(self) -> Pool:
        """The worker processes, shared by all graders of this process with the same limits."""
        return shared_pool(*self._limits)

    def check_gold(self, gold: str) -> str | None:
        """None, or why this gold answer can't be graded."""
        return self.check_golds([gold])[0]

    def check_golds(self, golds: Sequence[str]) -> list[str | None]:
        """`check_gold` of many; what only the symbolic stage can read is asked of all workers at once."""
        reasons = {gold: unusable(gold) for gold in dict.fromkeys(golds)}
        asked = [gold for gold, reason in reasons.items() if reason == ASK]
        replies = self._replies([Question(clean(gold), "") for gold in asked])
        for gold, reply in zip(asked, replies, strict=True):
            reasons[gold] = (
                None if reply.equal else f"no expression can be read from it ({reply.failure or 'symbolic'})"
            )
        return [reasons[gold] for gold in golds]

    def score(self, text: str, gold: str) -> Score:
        """Reward +1 or -1 (section 2.4).

        Args:
            text: the response, decoded up to its first EOS.
            gold: an answer that `check_gold` accepts.

        >>> Grader(["answer_line"]).score("Answer: 0.50", "1/2").verdict
        <Verdict.CORRECT: 'correct'>
        """
        return self.score_all([(text, gold)])[0]

    def score_all(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """`score` of many (text, gold) pairs; the symbolic stage runs on all workers at once."""
        found = [extract(text, self.policies) for text, _ in pairs]
        asked = [(gold, answer) for (answer, _), (_, gold) in zip(found, pairs, strict=True) if answer is not None]
        decisions = dict(zip(asked, self.judge_all(asked), strict=True))
        scores = []
        for (answer, policy), (_, gold) in zip(found, pairs, strict=True):
            if answer is None:
                stage = f"{policy}: empty" if policy else "nothing found"
                scores.append(make_score(Verdict.UNPARSED, None, stage))
            else:
                verdict, stage = decisions[gold, answer]
                scores.append(make_score(verdict, answer, f"{policy}: {stage}"))
        return scores

    def judge_all(self, pairs: Sequence[tuple[str, str]]) -> list[Decision]:
        """(verdict, stage) of bare (gold, answer) pairs."""
        decided: dict[tuple[str, str], Decision] = {}
        open_pairs: list[tuple[str, str]] = []
        for pair in dict.fromkeys(pairs):
            decision = self._cached(pair) or self._decide(*pair)
            if decision is None:
                open_pairs.append(pair)
            else:
                decided[pair] = decision
        if open_pairs:
            for pair, decision in zip(open_pairs, self._ask(open_pairs), strict=True):
                decided[pair] = decision
        for pair, decision in decided.items():
            self._keep(pair, decision)
        return [decided[pair] for pair in pairs]

    def judge(self, gold: str, answer: str) -> Decision:
        """(verdict, stage) of one bare answer."""
        return self.judge_all([(gold, answer)])[0]

    def _decide(self, gold: str, answer: str) -> Decision | None:
        """The stages of the calling process; None when the symbolic one is needed."""
        plain, written = _INTEGER.fullmatch(gold), _INTEGER.fullmatch(answer)
        if plain and written:
            equal = (plain[1] or "", plain[2]) == (written[1] or "", written[2])
            return (Verdict.CORRECT if equal else Verdict.WRONG), "number"
        if is_placeholder(gold):
            return Verdict.ERROR, "bad gold"
        if too_long(gold) or too_long(answer):
            return Verdict.WRONG, "too long"
        ours, theirs = clean(gold), clean(answer)
        if not theirs:
            return Verdict.UNPARSED, "empty"
        letter = choice(ours)
        if letter and (chosen := choose(theirs)):
            return (Verdict.CORRECT if letter == chosen else Verdict.WRONG), "choice"
        truth, stage = compare(read(ours), read(theirs), self._rules)
        if truth is None:
            return None
        return (Verdict.CORRECT if truth else Verdict.WRONG), stage

    def _ask(self, pairs: Sequence[tuple[str, str]]) -> list[Decision]:
        questions = [Question(clean(gold), clean(answer), *self._options) for gold, answer in pairs]
        return [_decision(reply) for reply in self._replies(questions)]

    def _replies(self, questions: Sequence[Question]) -> list[Reply]:
        try:
            return self.pool.ask_all(questions) if questions else []
        except (RewardError, OSError) as error:
            return [Reply(None, "symbolic", str(error))] * len(questions)

    def _cached(self, pair: tuple[str, str]) -> Decision | None:
        with self._lock:
            return self._cache.get(pair)

    def _keep(self, pair: tuple[str, str], decision: Decision) -> None:
        """Timeouts and errors are not kept: a busy moment must not decide for good."""
        if decision[0] in (Verdict.TIMEOUT, Verdict.ERROR):
            return
        with self._lock:
            self._cache[pair] = decision
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)


def _screened(gold: str, pred: str) -> Truth:
    """The leaf of the calling process: equal by spelling, not worth asking, or not known."""
    if undecided(gold, pred):
        return True
    return None if screen(gold, pred) is None else False


def _decision(reply: Reply) -> Decision:
    if reply.equal is None:
        timeout = reply.failure == "timeout"
        return (Verdict.TIMEOUT if timeout else Verdict.ERROR), f"{reply.stage}: {reply.failure}"
    return (Verdict.CORRECT if reply.equal else Verdict.WRONG), reply.stage


def make_score(verdict: Verdict, extracted: str | None, stage: str) -> Score:
    """A Score of the built-in grader."""
    right = verdict is Verdict.CORRECT
    reward = RIGHT if right else WRONG
    return Score(
        verdict=verdict, correct=right, reward=reward, parts={"grader": reward}, extracted=extracted, stage=stage
    )
