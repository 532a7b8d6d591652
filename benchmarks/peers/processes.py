"""Starts the processes of a peer, and makes sure that all of them end."""

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
    """Processes with log files. Inside processes() below, none outlives the `with` block."""

    def __init__(self, folder: str) -> None:
        """folder: for the log files."""
        self.folder = Path(folder)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Starts a process in the repository's root, with additional environment variables. Returns its pid."""
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
        """The output of a process so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Waits until the named processes have ended with 0. Raises as wait_until does."""
        self.wait_until(lambda: all(self.running[name].poll() == 0 for name in names), seconds, " and ".join(names))

    def wait_until(self, done: Callable[[], bool], seconds: float, event: str) -> None:
        """Waits until done() is true. Raises PeerError if a process fails, or after the timeout."""
        deadline = time.monotonic() + seconds
        while True:
            for name, process in self.running.items():
                if process.poll():
                    raise PeerError(f"{name} ended with exit code {process.returncode}: {last_line(self.log(name))}")
            if done():
                return
            if time.monotonic() > deadline:
                raise PeerError(f"{event}: not done within {seconds:.0f} s")
            time.sleep(TICK_S)

    def stop(self) -> None:
        """Stops the running processes."""
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
    """Runs in the child before exec: the kernel sends SIGTERM when the runner dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def last_line(text: str) -> str:
    """The last non-empty line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """A Processes with a temporary folder; stops the processes at the end, also after SIGTERM."""

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
    """A port that is free at the moment."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port
