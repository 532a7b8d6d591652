"""The life of a scheduler's or server's process, from the join to the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .ticket import OF_CORE

SLICE_MS = 100
"""The longest single call into the core. Python sees a signal only between two calls."""

NO_WORKERS = signal.SIGUSR1
"""Says that no worker is left. A node ends by it unless it has joined: then it ends with its cluster anyway."""


def serve(
    role: str,
    host: str | None = None,
    port: int | None = None,
    num_workers: int | None = None,
    num_servers: int | None = None,
) -> int:
    """Runs a node until its cluster has ended. The arguments go before DMLC_* in the environment.

    Returns the process's exit code: 0 if all nodes left in good order, 1 with a line on stderr if one was lost or the
    node could not join, 128 + n if it was told to end by signal n (SIGTERM or SIGINT; NO_WORKERS before the join).
    """
    from . import _core

    settings = {**os.environ, "DMLC_ROLE": role}
    arguments = {
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NUM_WORKER": num_workers,
        "DMLC_NUM_SERVER": num_servers,
    }
    settings.update({name: str(value) for name, value in arguments.items() if value is not None})
    with _signals(signal.SIGTERM, signal.SIGINT) as received, _signals(NO_WORKERS) as no_workers:
        try:
            handle = _core.open(json.dumps(settings))
        except OF_CORE as error:
            return _fail(role, error)
        try:
            if role == "server":  # workers of ps-lite find its app 0
                _core.ps_customer(handle, 0, 0)
                _core.ps_sum(handle, 0, 0)
            life = _core.joined(handle)
            while not received:
                if _core.wait(handle, life, SLICE_MS):
                    return 0
                if no_workers and not json.loads(_core.info(handle))["joined"]:
                    return 128 + NO_WORKERS
        except OF_CORE as error:
            return _fail(role, error)
        finally:
            # What the others have to hear, such as who was lost, is on its way until the close has ended.
            with contextlib.suppress(*OF_CORE):
                end = _core.close(handle, 0)
                while len(received) < 2 and not _core.wait(handle, end, SLICE_MS):
                    pass
    print(f"fptps {role}: ended by {signal.Signals(received[0]).name}", file=sys.stderr)
    return 128 + received[0]


def _fail(role: str, error: Exception) -> int:
    """Tells in one line why the node has ended."""
    print(f"fptps {role}: {error}", file=sys.stderr)
    return 1


@contextlib.contextmanager
def _signals(*numbers: int) -> Iterator[list[int]]:
    """Gathers signals within this context, where the program's main thread runs it."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            # What ends here is a process whose exit code is news: it must not be ended by NO_WORKERS any more.
            signal.signal(number, signal.SIG_IGN if number == NO_WORKERS else handler)
