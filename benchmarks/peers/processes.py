"""The processes of a peer: all of them end, whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .common import ROOT, PeerError

HOST = "127.0.0.1"
TICK_S = 0.02
GRACE_S = 3.0
PR_SET_PDEATHSIG = 1


class Processes:
    """Started one after the other; none outlives the `with`."""

    def __init__(self, folder: str) -> None:
        """What they print goes to files of the folder."""
        self.folder = Path(folder)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Starts one in the repository's root, with this environment besides its own. Returns its pid."""
        with open(self.folder / f"{name}.log", "wb") as log:
            self.running[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )
        return self.running[name].pid

    def log(self, name: str) -> str:
        """What it has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Until those have ended well, or as wait_until."""
        self.wait_until(lambda: all(self.running[name].poll() == 0 for name in names), seconds, " and ".join(names))

    def wait_until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Until `done`. PeerError as soon as any process has failed, or after the time."""
        deadline = time.monotonic() + seconds
        while True:
            for name, process in self.running.items():
                if process.poll():
                    raise PeerError(f"{name} ended with exit code {process.returncode}: {last_line(self.log(name))}")
            if done():
                return
            if time.monotonic() > deadline:
                raise PeerError(f"{what}: not done within {seconds:.0f} s")
            time.sleep(TICK_S)

    def stop(self) -> None:
        """Ends those that still run."""
        for process in self.running.values():
            process.terminate()
        deadline = time.monotonic() + GRACE_S
        for process in self.running.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def end_with_parent() -> None:
    """In a child before its program starts: SIGTERM when the runner dies, however it does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def last_line(text: str) -> str:
    """Of what a failed process has said."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """A set of processes, and a folder for what they say."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory(prefix="fptps-peers-") as folder:
        started = Processes(folder)
        try:
            yield started
        finally:
            started.stop()


def free_port() -> int:
    """A port of this machine that nobody has now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port
