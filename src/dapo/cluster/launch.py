"""Starts the parts of a run on a cluster, and ends them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dapo.cluster.broadcast_group import BroadcastGroup
from dapo.cluster.engine_actor import EngineActor
from dapo.cluster.engines import RemoteEngines
from dapo.cluster.graders import GraderActor, RemoteScores, ScoredAhead
from dapo.cluster.learner import RemoteLearner, RemoteShards
from dapo.cluster.makers import Factories, Facts, make_engine, make_rank
from dapo.cluster.placement import Seats, Wanted, check_here, check_room, release, reserve, wanted
from dapo.cluster.rank import RankActor
from dapo.cluster.replies import Home
from dapo.cluster.session import Session, need_ray
from dapo.cluster.weights import ObjectStore
from dapo.config.schema import Config
from dapo.errors import LearnerLost, UserError
from dapo.grading import GroupGrader
from dapo.rollout.base import RolloutEngine
from dapo.types import FinishedDraw, Prompt


class Cluster:
    """The parts of a run, begun. `ready` waits for them, `close` ends them all.

    Attributes:
        facts: what the learner's first rank says of the starting model, once ready.
        scores: a score function of grader actors; None where the driver grades.
    """

    facts: Facts

    def __init__(self, session: Session, config: Config, factories: Factories, *, judged: bool) -> None:
        own, home, self._session = config.cluster, Home.here(), session
        self._broadcasts = own.weights == "broadcast"
        nodes = session.nodes()
        self._nodes, self._parts = len(nodes), wanted(config, gpus=any(node.get("GPU") for node in nodes))
        check_room(list(self._parts.values()), nodes)
        self._groups = reserve(self._parts)
        ranks = Seats(RankActor, self._parts["learner"], self._groups["learner"], home, concurrency_groups={"save": 1})
        kind = RemoteLearner if own.learner_ranks == 1 else RemoteShards
        self.learner = kind(
            [ranks.start(number) for number in range(own.learner_ranks)],
            partial(make_rank, config, factories),
            transport=ObjectStore(),
            stop=ranks.stop,
        )
        self.engines = RemoteEngines(
            Seats(EngineActor, self._parts["engine"], self._groups["engine"], home),
            partial(make_engine, config, factories),
            count=own.engines,
            slots=config.engine.slots,
            transport=ObjectStore(),
            restarts=own.engine_restarts,
        )
        self.scores: RemoteScores | None = None
        if own.graders:
            seats = Seats(GraderActor, self._parts["grader"], None, home, scheduling_strategy="SPREAD")
            self.scores = RemoteScores(seats, config, own.graders, judged=judged)

    def ready(self) -> str:
        """Waits until all is built; returns a line that says what there is."""
        try:
            self.facts = self.learner.ready()
        except LearnerLost as error:
            raise UserError(f"{error.message}; it died while it was started: is its memory enough?") from error
        self.engines.ready()
        self.learner.transport = self.engines.transport = ObjectStore(self.facts.dtype)  # no wider than engines use
        if self._broadcasts:
            gpus = self.facts.device == "cuda" and all(self._parts[side].gpus for side in ("learner", "engine"))
            host = "127.0.0.1" if self._nodes == 1 else need_ray().util.get_node_ip_address()
            self.learner.group = BroadcastGroup(host, self.engines.members, gpus=gpus)
        note = f"; {self.facts.note}" if self.facts.note else ""
        return described(self._parts, self._nodes, own=self._session.own) + note

    def engine(self, grader: GroupGrader) -> RolloutEngine:
        """The engines as one; with grader actors its draws are scored as they finish."""
        scores = self.scores
        if scores is None:
            return self.engines

        def begin(finished: FinishedDraw, prompt: Prompt) -> None:
            texts = [grader.text(response) for response in finished.responses]
            scores.begin(prompt, texts, [response.token_ids.tolist() for response in finished.responses])

        return ScoredAhead(self.engines, begin)

    def close(self) -> None:
        """Ends actors, gives their places back, and leaves the cluster. Safe to call twice."""
        self.engines.close()
        self.learner.close()
        if self.scores is not None:
            self.scores.close()
        groups, self._groups = self._groups, {}
        release(groups)
        self._session.close()


def launch(config: Config, factories: Factories, *, judged: bool, say: Callable[[str], None]) -> Cluster:
    """Starts learner ranks, engines and graders as the configuration asks for.

    Args:
        config: of the run.
        factories: what builds engines and learners.
        judged: whether scores say right or wrong.
        say: tells a person.

    Raises:
        UserError: the cluster can't be joined, or has too little.
        DapoError: what a part raised while it was built.
    """
    session = Session.open(check_here(config) if Session.starts_own() else 0)
    try:
        cluster = Cluster(session, config, factories, judged=judged)
    except BaseException:
        session.close()
        raise
    try:
        say(cluster.ready())
    except BaseException:
        cluster.close()
        raise
    return cluster


def described(parts: dict[str, Wanted], nodes: int, *, own: bool) -> str:
    """`Ray: 2 engines and 1 learner rank on a cluster of 1 node, started here`."""
    counts = [
        f"{part.count} {name}{'s' * (part.count != 1)}"
        for name, part in (("learner rank", parts["learner"]), ("engine", parts["engine"]), ("grader", parts["grader"]))
        if part.count
    ]
    where = "started here" if own else "which was there"
    return f"Ray: {', '.join(counts)} on a cluster of {nodes} node{'s' * (nodes != 1)}, {where}"
