"""Where the threads of this process are, for the log of another node that waits for this one."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from types import FrameType
from typing import Any, Final

from .errors import ClosedError

FRAMES: Final = 8
"""The innermost ones of a thread that are named."""

SLICE_MS: Final = 3_600_000


def answer(core: Any, handle: int) -> None:
    """Answers such questions of the node's core until it is closed, on a thread: the program's own may stand still."""

    def run() -> None:
        with contextlib.suppress(ClosedError):
            while True:
                if core.stack_asked(handle, SLICE_MS):
                    core.stack(handle, text())

    threading.Thread(target=run, name="fptps stacks", daemon=True).start()


def text() -> str:
    """All threads but this one in a line, the main thread first: its name, and its calls, the innermost last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own, main = threading.get_ident(), threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, names.get(item[0], "")))
    return "; ".join(f"{names.get(ident, 'a thread')}: {_calls(frame)}" for ident, frame in frames if ident != own)


def _calls(innermost: FrameType) -> str:
    calls: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(calls) < FRAMES:
        calls.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return ("... > " if frame is not None else "") + " > ".join(reversed(calls))
