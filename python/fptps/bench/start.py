"""Where a benchmark runs: on a cluster of this machine, or as one worker of a cluster that is already there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import ConfigError
from ..local import LocalCluster
from ..worker import KVWorker

Part = Callable[[], dict[str, Any]]
"""One worker's part of a benchmark. It joins its cluster, and gives the figures on rank 0."""

DAY_S: Final = 24 * 3600.0
"""A local benchmark may take so long. It is whoever started it who knows better; a dead process ends it at once."""
WORKERS: Final = 2
SERVERS: Final = 1


def is_member() -> bool:
    """Whether the environment makes this process a worker of a cluster that is already there."""
    return os.environ.get("DMLC_ROLE") == "worker" or bool(os.environ.get("DMLC_PS_ROOT_URI"))


def run(part: Part, workers: int | None, servers: int | None, settings: Mapping[str, str]) -> dict[str, Any]:
    """Has every worker take part; gives rank 0's figures, and as a member of another rank none.

    workers and servers: None means 2 and 1, and as a member whatever the cluster has. settings: environment variables,
    for all nodes of a local cluster, or for this worker.
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
    """ConfigError if the cluster is not the one that is asked for."""
    if not os.environ.get("DMLC_PS_ROOT_URI"):
        raise ConfigError("DMLC_ROLE=worker, but no scheduler: set DMLC_PS_ROOT_URI, or unset DMLC_ROLE")
    for name, option, number in (("DMLC_NUM_WORKER", "-n", workers), ("DMLC_NUM_SERVER", "-s", servers)):
        if number is not None and os.environ.get(name) not in (None, "", str(number)):
            raise ConfigError(
                f"{option} {number}, but this process is a member of a cluster with {name}={os.environ[name]}: "
                f"leave {option} away"
            )


def take_part(measure: Callable[[KVWorker], dict[str, Any]]) -> dict[str, Any]:
    """The part of a worker that measures with a KVWorker of its own."""
    with KVWorker() as kv:
        figures = measure(kv)
    return figures if kv.rank == 0 else {}
