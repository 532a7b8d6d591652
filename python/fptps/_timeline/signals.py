"""SIGUSR2 starts and ends the trace of a process's nodes."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ..errors import FptpsError

if TYPE_CHECKING:
    from .._session import Session

SAMPLING: Final = "1/64"

_log = logging.getLogger("fptps")


def listen(sessions: Callable[[], Iterable[Session]]) -> None:
    """From now on SIGUSR2 is about these sessions: unless the program has a handler of its own, or this is not the main
    thread, which alone can set one."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGUSR2) != signal.SIG_DFL:
        return

    def toggle(number: int, frame: object) -> None:
        for session in sessions():
            if session.handle:
                _toggle(session)

    signal.signal(signal.SIGUSR2, toggle)


def _toggle(session: Session) -> None:
    core, handle = session.core, session.handle
    try:
        try:
            written = core.stop_trace(handle, "")
        except ValueError:  # it is not traced
            core.start_trace(handle, SAMPLING)
            print(f"fptps: {session.name} is traced until the next SIGUSR2, 1 packet in 64", file=sys.stderr)
        else:
            print(f"fptps: {session.name} has written its part of the timeline: {written}", file=sys.stderr)
    except FptpsError as error:
        _log.warning("SIGUSR2: %s", error)
