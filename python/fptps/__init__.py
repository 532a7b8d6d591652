"""fptps: a parameter server for data-parallel training.

    import fptps

    with fptps.KVWorker() as kv:
        kv.init(0, weights)
        kv.push_pull(0, gradient, out=gradient, op="mean").result()

`fptps run -n 4 -s 2 python train.py` runs such a program on a cluster of local processes. KVWorker joins the cluster
that the environment names (DMLC_PS_ROOT_URI and others), or runs alone without one.
"""

from typing import Any

from . import optim
from .cluster import LocalCluster
from .consistency import Bounded
from .errors import (
    BusyError,
    CheckpointError,
    ClosedError,
    ConfigError,
    ConnectError,
    FptpsError,
    InternalError,
    MismatchError,
    NodeLostError,
    RankError,
    RemoteError,
    TimeoutError,
)
from .namespace import Namespace
from .stats import Stats
from .ticket import Ticket, as_completed, wait
from .worker import KVWorker

__all__ = [
    "Bounded",
    "BusyError",
    "CheckpointError",
    "ClosedError",
    "ConfigError",
    "ConnectError",
    "FptpsError",
    "InternalError",
    "KVWorker",
    "LocalCluster",
    "MismatchError",
    "Namespace",
    "NodeLostError",
    "RankError",
    "RemoteError",
    "Stats",
    "Ticket",
    "TimeoutError",
    "__version__",
    "as_completed",
    "optim",
    "wait",
]

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":  # 20 ms, which few need
        import importlib.metadata

        return importlib.metadata.version("fptps")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
