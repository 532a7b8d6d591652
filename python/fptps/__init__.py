"""fptps: a parameter server for data-parallel training.

    import fptps

    with fptps.KVWorker() as kv:
        kv.init(0, weights)
        kv.push_pull(0, gradient, out=gradient, op="mean").wait()

`fptps run -n 4 -s 2 python train.py` runs such a program on a cluster of local processes. KVWorker joins the cluster
that the environment names (DMLC_PS_ROOT_URI and others), or runs alone without one.
"""

from typing import Any

from . import optim
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
from .local import LocalCluster
from .ticket import Ticket
from .worker import KVWorker

__all__ = [
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
    "NodeLostError",
    "RankError",
    "RemoteError",
    "Ticket",
    "TimeoutError",
    "__version__",
    "optim",
]

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":  # 20 ms, which few need
        import importlib.metadata

        return importlib.metadata.version("fptps")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
