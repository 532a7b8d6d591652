"""Every error of fptps, and the codes by which the core names them.

Events that a correct program can meet (a node dies, a setting is missing) have classes of fptps's own, all of them
FptpsError. A wrong argument raises Python's own TypeError, ValueError or KeyError, as with numpy: it is a fault of the
calling code, which no program should handle as a state of the cluster.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable
from typing import Final


class FptpsError(Exception):
    """The base of every error that is not a wrong argument. The text names the failure, its place and the remedy.

    The attributes are for programs that handle an error; they survive pickling.
    """

    role: str | None
    """The role of the node that the error is about: "worker", "server" or "scheduler"; None if it is about no node."""

    rank: int | None
    """That node's number among those of its role; None for the scheduler."""

    key: int | str | None
    """The tensor that the error is about: its number, or its name after the names of its namespaces, with "/" between
    them; None if it is about no tensor."""

    missing: tuple[str, ...]
    """The nodes that a wait lacked, such as "worker 1"; () if they are not known."""

    def __init__(
        self,
        *args: object,
        role: str | None = None,
        rank: int | None = None,
        key: int | str | None = None,
        missing: Iterable[str] = (),
    ) -> None:
        super().__init__(*args)
        self.role, self.rank, self.key, self.missing = role, rank, key, tuple(missing)


class ConfigError(FptpsError):
    """A setting is missing or makes no sense."""


class ConnectError(FptpsError):
    """A node could not be reached, or refused this one (another cluster token, another version)."""


class MismatchError(FptpsError):
    """Workers disagree about a tensor, or one has closed while others wait for it. The text names the key, and the
    declaration of each; rank is the worker that all others disagree with, or that has closed."""


class NodeLostError(FptpsError):
    """A node of the cluster died, or left without waiting for the others, which cannot go on. role and rank name it."""


class TimeoutError(FptpsError, builtins.TimeoutError):
    """A wait ended without its event. missing names the nodes that it waited for; waiting again is fine."""


class ClosedError(FptpsError):
    """Used after close(), or in a forked child. key names the tensor of the call or ticket, if it is one tensor's."""


class BusyError(FptpsError):
    """An operation is still under way: the array is in flight, or the ticket is not done. Wait for the ticket."""


class RankError(FptpsError):
    """An exception of a worker of a LocalCluster, with that worker's traceback as its text. It is the cause of the
    exception that LocalCluster raises, or that exception itself if the worker's own cannot be pickled."""


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


OF_CORE: Final = tuple(CLASSES.values())
"""The classes that calls of the core raise."""


def from_core(error: str) -> Exception:
    """The exception that the core means: its errors are texts of the form `fptps:code{"key":7}: text`."""
    prefix, _, rest = error.partition(PREFIX)
    code, brace, rest = rest.partition("{")
    kind = CLASSES.get(code)
    try:
        about, end = json.JSONDecoder().raw_decode(brace + rest)
    except ValueError:
        return InternalError(error)
    text = (brace + rest)[end:]
    if prefix or kind is None or not text.startswith(": "):
        return InternalError(error)
    return kind(text[2:], **about) if issubclass(kind, FptpsError) else kind(text[2:])


def timed_out(seconds: float, waiting: str) -> TimeoutError:
    """The error of a wait that took so long. waiting: the core's error, as from_core() takes it; "": it has none."""
    error = from_core(waiting) if waiting else TimeoutError("its end came just now")
    if not isinstance(error, TimeoutError):
        raise error
    return TimeoutError(f"waited {round(seconds, 2):g} s: {error}", key=error.key, missing=error.missing)
