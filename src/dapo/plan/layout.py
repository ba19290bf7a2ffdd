"""Which devices hold what: learner ranks, engines, and whether they share."""

from __future__ import annotations

from dataclasses import dataclass

from dapo.config.schema import Config
from dapo.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """gpus: paid for. ranks: that the learner is sharded over, one device each. engines, devices_per_engine.

    shared: each device holds a rank and an engine, and does one thing at a time. idle: devices that nothing uses.
    note: how this follows from the configuration.
    """

    gpus: int
    ranks: int
    engines: int
    devices_per_engine: int
    shared: bool
    note: str

    @property
    def used(self) -> int:
        """Devices that something runs on."""
        own = self.engines * self.devices_per_engine
        return max(self.ranks, own) if self.shared else self.ranks + own

    @property
    def idle(self) -> int:
        """Devices that are paid for and not used."""
        return self.gpus - self.used


def lay_out(config: Config, gpus: int) -> Layout:
    """The layout that cluster.* asks for on so many devices.

    Raises:
        UserError: it asks for more devices than there are.
    """
    cluster = config.cluster
    if cluster.kind == "local":
        ranks = gpus if config.learner.kind == "fsdp" else 1
        note = (
            f'cluster.kind = "local", learner.kind = "fsdp": {gpus} processes of torchrun, each a rank and an engine'
            if config.learner.kind == "fsdp"
            else 'cluster.kind = "local": engine and learner in one process, on one device'
        )
        return Layout(gpus=gpus, ranks=ranks, engines=ranks, devices_per_engine=1, shared=True, note=note)
    each, per_rank = cluster.gpus_per_engine or 1, cluster.gpus_per_rank or 1
    needed = cluster.learner_ranks * per_rank + cluster.engines * each
    if needed > gpus:
        raise UserError(
            f"cluster.learner_ranks = {cluster.learner_ranks} x {per_rank} and cluster.engines = {cluster.engines} x "
            f"{each} ask for {needed} devices, but --gpus is {gpus}; lower them, or raise --gpus"
        )
    note = f'cluster.kind = "ray": {cluster.learner_ranks} learner ranks and {cluster.engines} engines of {each}, apart'
    return Layout(
        gpus=gpus,
        ranks=cluster.learner_ranks,
        engines=cluster.engines,
        devices_per_engine=each,
        shared=False,
        note=note,
    )
