"""Every error of fptps, and the codes by which the core names them.

What may happen to a correct program (a node dies, a setting is missing) is a class of ours, all of them
FptpsError. What is wrong with an argument is Python's own TypeError, ValueError or KeyError, as with numpy:
a fault of the calling code, which no program should catch as a state of the cluster.
"""

from __future__ import annotations

import builtins
from typing import Final


class FptpsError(Exception):
    """The base of every error that is not a wrong argument. The text says what, where, and what to do."""


class ConfigError(FptpsError):
    """A setting is missing or makes no sense."""


class ConnectError(FptpsError):
    """A node could not be reached, or refused this one (another cluster token, another version)."""


class MismatchError(FptpsError):
    """Workers disagree about the size or dtype of a tensor. The text names the key, both sizes, and the ranks."""


class NodeLostError(FptpsError):
    """A node of the cluster died or left without a word, so the others cannot go on. The text names it."""


class TimeoutError(FptpsError, builtins.TimeoutError):
    """A wait ended without its event. The text names what is missing; waiting again is fine."""


class ClosedError(FptpsError):
    """Used after close(), or in a forked child."""


class BusyError(FptpsError):
    """An operation is still under way: the array is in flight, or the ticket is not done. Wait for the ticket."""


class RankError(FptpsError):
    """What a worker of a LocalCluster raised. Its text is that worker's traceback; it is the cause of the exception
    that LocalCluster raises, or that exception itself where the worker's own cannot be pickled."""


class RemoteError(FptpsError):
    """A node answered a request of fptps.ps with an error, such as an exception in its handler. The text names the node
    and has its text."""


class CheckpointError(FptpsError):
    """A file that KVWorker.load() cannot take: it is cut, was written by something else, or does not fit the tensors of
    this cluster. Nothing was changed."""


class InternalError(FptpsError):
    """A bug in fptps. Please report it with the whole text."""


CLASSES: Final[dict[str, type[Exception]]] = {
    "config": ConfigError,
    "connect": ConnectError,
    "mismatch": MismatchError,
    "node_lost": NodeLostError,
    "timeout": TimeoutError,
    "closed": ClosedError,
    "busy": BusyError,
    "type": TypeError,
    "value": ValueError,
    "key": KeyError,
    "remote": RemoteError,
    "internal": InternalError,
}
"""The class of each code; the codes are those of gocore/fault."""

PREFIX: Final = "fptps:"


def from_core(error: RuntimeError) -> Exception:
    """The exception that the core means: its errors arrive as RuntimeError("fptps:code: text")."""
    prefix, _, rest = str(error).partition(PREFIX)
    code, _, text = rest.partition(": ")
    if prefix or code not in CLASSES:
        return InternalError(str(error))
    return CLASSES[code](text)
