"""The connection to Ray: a cluster that is started here, or the one that RAY_ADDRESS names."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from dapo.errors import ConfigError, UserError

logger = logging.getLogger(__name__)

ADDRESS = "RAY_ADDRESS"
NICENESS = "RAY_worker_niceness"  # of actors; Ray's own default is 15
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": Ray listens on 127.0.0.1 alone, as it does by itself on macOS
QUIET = {  # no advice, no reports, nothing said of answers that nobody waits for any more
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}


def need_ray() -> Any:
    """The module ray. Raises ConfigError where it is not installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if own_cluster():
        os.environ.setdefault(LOOPBACK, "0")  # read when Ray is imported
        os.environ.setdefault(NICENESS, "0")  # actors are the run itself, not what may wait behind other programs
    try:
        import ray
    except ImportError:
        raise ConfigError('cluster.kind = "ray" needs the library ray; pip install "dapo-rl[ray]"') from None
    return ray


def own_cluster() -> bool:
    """Whether the environment names no other cluster than one on this machine."""
    return os.environ.get(ADDRESS, "local") in ("", "local")


@dataclass(slots=True)
class Session:
    """A connection. `own`: its cluster was started here, on this machine alone, and ends with this process."""

    own: bool
    connected: bool  # by us; a connection that somebody else made is left as it is

    @classmethod
    def open(cls, cpus: int) -> Session:
        """Connects. A cluster that is started here says that it has so many CPU cores.

        Raises UserError where no cluster answers at RAY_ADDRESS.
        """
        ray = need_ray()
        if ray.is_initialized():
            return cls(own=False, connected=False)
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if own_cluster():
            ray.init(address="local", include_dashboard=False, num_cpus=cpus, **quiet)
            return cls(own=True, connected=True)
        address = os.environ[ADDRESS]
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"{ADDRESS} = {address}: no Ray cluster can be joined there ({reason}); start one with "
                f"ray start --head, or unset {ADDRESS} for one that this run starts itself"
            ) from error
        return cls(own=False, connected=True)

    @staticmethod
    def starts_own() -> bool:
        """Whether `open` will start a cluster."""
        return not need_ray().is_initialized() and own_cluster()

    @staticmethod
    def nodes() -> list[dict[str, float]]:
        """What each living node has: {"CPU": 8.0, "GPU": 2.0, ...}."""
        return [dict(node["Resources"]) for node in need_ray().nodes() if node["Alive"]]

    def close(self) -> None:
        """Leaves the cluster; one that was started here ends. Safe to call twice."""
        if self.connected:
            self.connected = False
            need_ray().shutdown()
