"""Starts a benchmark: on a new cluster on this machine, or as one worker of an existing cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..cluster import LocalCluster
from ..errors import ConfigError
from ..worker import KVWorker

Part = Callable[[], dict[str, Any]]
"""Runs a benchmark on one worker: it joins its cluster, and returns the figures on rank 0."""

DAY_S: Final = 24 * 3600.0
"""Timeout of a local benchmark. The user may interrupt it earlier, and a dead process ends it at once."""
WORKERS: Final = 2
SERVERS: Final = 1


def is_member() -> bool:
    """Whether the environment makes this process a worker of an existing cluster."""
    return os.environ.get("DMLC_ROLE") == "worker" or bool(os.environ.get("DMLC_PS_ROOT_URI"))


def run(part: Part, workers: int | None, servers: int | None, settings: Mapping[str, str]) -> dict[str, Any]:
    """Runs part on every worker. Returns rank 0's figures; on another rank of an existing cluster an empty dict.

    workers and servers: None means 2 and 1, or the numbers of the existing cluster. settings: environment variables for
    all nodes of a local cluster, or for this worker.
    """
    if not is_member():
        cluster = LocalCluster(
            WORKERS if workers is None else workers, SERVERS if servers is None else servers, DAY_S, settings
        )
        figures: dict[str, Any] = cluster.run(part)[0]
        return figures
    check_member(workers, servers)
    os.environ.update(settings)
    return part()


def check_member(workers: int | None, servers: int | None) -> None:
    """Raises ConfigError if the existing cluster does not have the requested size."""
    if not os.environ.get("DMLC_PS_ROOT_URI"):
        raise ConfigError("DMLC_ROLE=worker, but no scheduler: set DMLC_PS_ROOT_URI, or unset DMLC_ROLE")
    for name, option, number in (("DMLC_NUM_WORKER", "-n", workers), ("DMLC_NUM_SERVER", "-s", servers)):
        if number is not None and os.environ.get(name) not in (None, "", str(number)):
            raise ConfigError(
                f"{option} {number}, but this process is a member of a cluster with {name}={os.environ[name]}: "
                f"leave out {option}"
            )


def take_part(measure: Callable[[KVWorker], dict[str, Any]]) -> dict[str, Any]:
    """Runs measure with a KVWorker; returns its figures on rank 0."""
    with KVWorker() as kv:
        figures = measure(kv)
    return figures if kv.rank == 0 else {}
