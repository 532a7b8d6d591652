"""fptps: a parameter server for data-parallel training.

    import fptps

    with fptps.KVWorker() as kv:
        kv.init(0, weights)
        kv.push_pull(0, gradient, out=gradient, op="mean").result()

`fptps run -n 4 -s 2 python train.py` runs such a program on a cluster of local processes. KVWorker joins the cluster
that the environment names (DMLC_PS_ROOT_URI and others), or runs alone without one.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import _logs, optim
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
from .stats import Stats
from .ticket import Ticket, as_completed, wait

if TYPE_CHECKING:
    from .cluster import LocalCluster
    from .namespace import Namespace
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

_logs.install()

_LATER = {"KVWorker": ".worker", "LocalCluster": ".cluster", "Namespace": ".namespace"}
"""Imported when first used, so that the scheduler, servers and `fptps run` start without numpy, in half of the time."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        found = globals()[name] = getattr(importlib.import_module(_LATER[name], __name__), name)
        return found
    if name == "__version__":  # 20 ms, which few need
        from importlib.metadata import version

        return version("fptps")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
