"""Exceptions of one worker, as bytes for the others."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable
from typing import Final

from .errors import OF_CORE, CheckpointError, FptpsError, RankError, RemoteError

_OS: Final = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, OSError)]
SAME_CLASS: Final[dict[str, type[Exception]]] = {
    kind.__name__: kind for kind in (*_OS, *OF_CORE, CheckpointError, RankError, FptpsError)
}
"""Classes that every worker raises alike; others become a RemoteError."""


def failure_of(work: Callable[[], object]) -> list[BaseException]:
    """The exception of work() in a list, or an empty list.

    The caller pops the exception from the list to raise it: no frame of its traceback then refers to it, so that
    nothing is kept alive.
    """
    try:
        work()
    except BaseException as error:
        return [error]
    return []


def packed(error: BaseException) -> bytes:
    """An exception for unpacked()."""
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FptpsError):
        name = None if error.filename is None else os.fspath(error.filename)
        content = [error.errno, error.strerror, name if isinstance(name, str) else repr(name)]
        return json.dumps({"os": content}).encode()
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return json.dumps({"class": type(error).__name__, "text": text}).encode()


def unpacked(rank: int, content: bytes) -> Exception:
    """The exception of a worker, for another one to raise."""
    described = json.loads(content)
    if "os" in described:
        number, text, name = described["os"]
        return OSError(number, f"{text} (at worker {rank})", name)
    kind, text = described["class"], described["text"]
    if kind in SAME_CLASS:
        return SAME_CLASS[kind](f"worker {rank}: {text}")
    return RemoteError(f"worker {rank} raised {kind}: {text}")
