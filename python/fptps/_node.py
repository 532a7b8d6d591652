"""The life of a scheduler's or server's process, from the join to the end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from . import _logs
from ._environment import REPORT, warn
from ._session import Session
from .errors import OF_CORE, ClosedError
from .ticket import SLICE_S

NO_WORKERS = signal.SIGUSR1
"""The signal that no worker is left. It ends a node that has not joined; one that has joined ends with its cluster."""


def serve(
    role: str,
    host: str | None = None,
    port: int | None = None,
    num_workers: int | None = None,
    num_servers: int | None = None,
    quiet: bool = False,
) -> int:
    """Runs a node until its cluster has ended. The arguments override DMLC_* in the environment.

    A scheduler prints where it listens and for which nodes it waits, each node that asks to join, and all nodes with
    their ranks when they have joined, unless quiet.

    Returns the process's exit code: 0 if all nodes left in good order, 1 with a line on stderr if one was lost or the
    node could not join, 128 + n if signal n ended it (SIGTERM or SIGINT; NO_WORKERS before the join).
    """
    session = Session(0.0, "the node has ended", "")
    core = session.core
    settings = {**os.environ, "DMLC_ROLE": role}
    arguments = {
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NUM_WORKER": num_workers,
        "DMLC_NUM_SERVER": num_servers,
    }
    settings.update({name: str(value) for name, value in arguments.items() if value is not None})
    _logs.identify(session, role, None)
    warn(settings)
    with _signals(signal.SIGTERM, signal.SIGINT) as received, _signals(NO_WORKERS) as no_workers:
        try:
            session.start(core.open, json.dumps(settings))
            if role == "server":  # workers of ps-lite find its app 0
                core.ps_customer(session.handle, 0, 0)
                core.ps_sum(session.handle, 0, 0)
            life = session.submit(core.joined, None)
            announcer = _Announcer(settings) if role == "scheduler" and not quiet else None
            while not received:
                ended = life.poll(SLICE_S)
                if announcer and announcer.update(json.loads(core.info(session.handle))):
                    announcer = None
                if ended:
                    life.result()
                    return 0
                if no_workers and not json.loads(core.info(session.handle))["joined"]:
                    return 128 + NO_WORKERS
            _identify(session, role)
        except OF_CORE as error:
            _identify(session, role)
            return _fail(role, error)
        finally:
            if role == "scheduler":
                _report_status(session)
            # Until the close has ended, messages to the others, such as a verdict, may still have to be sent.
            with contextlib.suppress(ClosedError):  # the start was refused
                end = session.submit(core.close, None, 0, "")
                while not end.poll(SLICE_S):
                    if len(received) > 1:
                        session.abandon("the node was ended by a second signal")
                        break
            session.drop()
    _logs.tell(role, f"ended by {signal.Signals(received[0]).name}")
    return 128 + received[0]


def _identify(session: Session, role: str) -> None:
    """Has the log name the server's rank, if it has one."""
    with contextlib.suppress(ClosedError):  # the start was refused
        info = json.loads(session.core.info(session.usable()))
        if role == "server" and info["joined"]:
            _logs.identify(session, role, info["rank"])


def _report_status(session: Session) -> None:
    """Writes the last status of the cluster for the `fptps run` that has started this scheduler."""
    path = os.environ.get(REPORT)
    if path and os.path.isdir(os.path.dirname(path)):
        with contextlib.suppress(ClosedError, OSError):
            text = session.core.status(session.usable())
            with open(path, "w") as file:
                file.write(text)


class _Announcer:
    """Prints where a scheduler listens, and the nodes that join it."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._asked = 0  # how many of the nodes that asked to join were printed
        counts = [
            f"{number} {role}{'' if number == '1' else 's'}"
            for role in ("worker", "server")
            if (number := settings[f"DMLC_NUM_{role.upper()}"]) != "0"
        ]
        where = f"{settings['DMLC_PS_ROOT_URI']}:{settings['DMLC_PS_ROOT_PORT']}"
        self._print(f"at {where}, waiting for {' and '.join(counts)}")

    def update(self, info: dict[str, Any]) -> bool:
        """Prints the changes in the core's description of the scheduler. Returns whether all nodes have joined."""
        asked = info["asked"] or []
        for node in asked[self._asked :]:
            missing = " and ".join(node["missing"] or ["no node"])
            self._print(f"{node['node']} has asked to join, {missing} missing")
        self._asked = len(asked)
        if info["joined"]:
            self._print("all nodes have joined: " + ", ".join(info["members"]))
        return bool(info["joined"])

    def _print(self, text: str) -> None:
        _logs.tell("scheduler", text)


def _fail(role: str, error: Exception) -> int:
    """Prints in one line why the node has ended."""
    _logs.tell(role, str(error), logging.ERROR)
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
            # The process ends with the exit code of serve(): NO_WORKERS must not replace it any more.
            signal.signal(number, signal.SIG_IGN if number == NO_WORKERS else handler)
