"""Runs the processes of a cluster to their end, whatever they do."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from .._node import NO_WORKERS
from ._ending import KILL_S, Ending
from ._output import LineSplitter, Printer
from ._process import Command, Process

GRACE_S: Final = 5.0
"""How long processes may take to end by themselves once one has failed."""
DONE_S: Final = 4.0
"""How long the scheduler and servers may take to end by themselves once all workers have ended: they left together."""
PATIENCE_S: Final = 2.0
"""How long after a signal the processes that still run are named."""
DRAIN_S: Final = 1.0
"""How long output is still read after the end of all processes: a daemon that one has left may keep it open."""
TICK_S: Final = 0.05

WITHOUT_WORKERS: Final = (-NO_WORKERS, 128 + NO_WORKERS)
"""The return codes of a node that NO_WORKERS has ended before it joined: without, and with, its signal handler set."""

SPAWN: Final = str(Path(__file__).with_name("_spawn.py"))


class Supervisor:
    """Runs processes to their end: passes on their output, and ends all of them when one fails.

    Each process leads a process group of its own, which ends with it. None outlives the thread that calls run(), even
    if that is killed. grace: how many seconds the others have to end by themselves when one fails, unless the cluster
    may go on without it; kill: how many from a signal to SIGKILL. keep_going: the others run on when one fails; the
    run ends when all workers have ended.
    """

    def __init__(
        self,
        commands: list[Command],
        grace: float = GRACE_S,
        kill: float = KILL_S,
        keep_going: bool = False,
        started: threading.Event | None = None,
        out: IO[str] | None = None,
        err: IO[str] | None = None,
    ) -> None:
        self.processes: list[Process] = []
        self.stopped_by: int | None = None
        self._commands = commands
        self._started = started or threading.Event()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._ended: list[Process] = []  # in the order in which they ended
        self._workers_left = True
        self._ending = Ending(kill)
        self._kill = kill
        self._patience: float | None = None  # when to name the processes of a stopped run that still run
        self._grace = grace
        self._keep_going = keep_going
        self._requests: collections.deque[int] = collections.deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._out = Printer(sys.stdout if out is None else out)
        self._err = Printer(sys.stderr if err is None else err)

    def run(self) -> int:
        """Starts all processes and returns when all have ended: the worst exit code of those that ended by themselves,
        0 if all ended well, 128 + n if stop(n) was called."""
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        try:
            for command in self._commands:
                self._start(command)
            self._started.set()
            while self._running:
                self._pass_on(TICK_S)
                self._step(time.monotonic())
            self._drain()
            self._report_early_ends()
        finally:
            self._signal(signal.SIGKILL)
            for process in self.processes:
                self._reap(process, wait=True)
            self._selector.close()
            os.close(self._wake_read)
            wake, self._wake_write = self._wake_write, -1
            os.close(wake)
        return self.exit_code()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends all processes by a signal, and `kill` seconds later, or when called again, by SIGKILL.

        For any thread, and for signal handlers; does not wait.
        """
        self._requests.append(number)
        with contextlib.suppress(OSError):  # the pipe is closed, or full of wake-ups
            os.write(self._wake_write, b"\0")

    def exit_code(self) -> int:
        """What run() returns."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return max((p.exit_code for p in self.failures()), default=0)

    def failures(self) -> list[Process]:
        """The processes that failed by themselves, in the order in which they ended; without those that died in a
        cluster that went on to its end without them. A worker that ended itself with an error counts."""
        orderly = self._orderly()
        return [p for p in self._ended if p.returncode and not p.asked and not (p.died_alone and orderly)]

    def missed(self) -> list[int]:
        """The ranks of the workers that died in a cluster that went on to its end without them."""
        return [p.rank for p in self._ended if p.role == "worker" and p.died_alone and p.returncode and self._orderly()]

    def joined(self) -> bool:
        """Whether the cluster was ever complete: its scheduler did not end for lack of workers."""
        return not any(p.role == "scheduler" and p.returncode in WITHOUT_WORKERS for p in self.processes)

    def _orderly(self) -> bool:
        """Whether the cluster has ended in good order."""
        return all(p.returncode == 0 for p in self.processes if p.role == "scheduler")

    def _start(self, command: Command) -> None:
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", SPAWN, str(os.getpid()), *command.arguments],
            env=command.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._running[started.pid] = started
        spare = command.role != "scheduler" and command.environment.get("FPTPS_RECOVERY") == "1"
        process = Process(command.role, command.rank, started.pid, spare=spare)
        self.processes.append(process)
        for pipe, printer in ((started.stdout, self._out), (started.stderr, self._err)):
            assert pipe is not None
            self._selector.register(pipe, selectors.EVENT_READ, (f"[{process.name}] ", LineSplitter(), printer))

    def _pass_on(self, timeout: float) -> None:
        """Passes on the output that comes within the time."""
        for key, _ in self._selector.select(timeout):
            if key.fd == self._wake_read:
                os.read(self._wake_read, 4096)
                continue
            prefix, splitter, printer = key.data
            data = os.read(key.fd, 65536)
            if data:
                lines, unfinished = splitter.feed(data)
                self._write(printer.lines, prefix, lines)
                self._write(printer.progress, prefix, unfinished)
            else:
                self._write(printer.lines, prefix, splitter.end())
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]

    def _write(self, write: Callable[..., None], *arguments: object) -> None:
        try:
            write(*arguments)
        except BrokenPipeError:  # the reader has ended: `fptps run ... | head`
            if signal.SIGPIPE not in self._requests and self.stopped_by is None:
                self._requests.append(signal.SIGPIPE)

    def _step(self, now: float) -> None:
        while self._requests:
            number = self._requests.popleft()
            self.stopped_by = self.stopped_by or number
            # SIGPIPE is our own affair; the processes are to end as by any order.
            self._ending.stop(now, signal.SIGTERM if number == signal.SIGPIPE else number)
            self._patience = now + PATIENCE_S
        for process in self.processes:
            if self._reap(process) and process.returncode and not process.asked:
                self._tell(f"fptps: {process.name} (pid {process.pid}) {process.how_it_ended()}")
                if not self._keep_going and not process.spare:
                    self._ending.expect(now, self._grace)
        if self._workers_left and all(p.returncode is not None for p in self.processes if p.role == "worker"):
            self._workers_left = False
            self._ending.expect(now, min(self._grace, DONE_S))
            for process in self.processes:
                if process.pid in self._running and not process.asked:
                    os.kill(process.pid, NO_WORKERS)
        due = self._ending.due(now)
        names = ", ".join(p.name for p in self.processes if p.returncode is None)
        if due is not None and names:
            if self.stopped_by is None or due == signal.SIGKILL:
                self._tell(f"fptps: still running, ended by {signal.Signals(due).name}: {names}")
            self._signal(due)
        elif self._patience is not None and now >= self._patience and names:
            self._tell(f"fptps: still running, killed {self._kill:g} s after the signal, or by a second one: {names}")
            self._patience = None

    def _tell(self, text: str) -> None:
        self._write(self._err.lines, "", [text.encode()])

    def _report_early_ends(self) -> None:
        """Names the workers that ended well in a run that failed, unless the cluster ended in good order before."""
        early = ", ".join(f"{p.name} (pid {p.pid})" for p in self._ended if p.role == "worker" and p.returncode == 0)
        if early and not self._orderly() and self.failures() and self.stopped_by is None:
            self._tell(f"fptps: ended with exit code 0, but before the cluster had ended in good order: {early}")

    def _signal(self, number: int) -> None:
        """Sends a signal to every process that has not ended, and its group."""
        for process in self.processes:
            if process.pid in self._running:
                process.asked = True
                for each in (number, signal.SIGCONT):  # a stopped process reacts to SIGKILL alone
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, each)

    def _reap(self, process: Process, wait: bool = False) -> bool:
        """Whether a process has ended just now. Its whole group ends then."""
        started = self._running.get(process.pid)
        if started is None:
            return False
        options = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
        if os.waitid(os.P_PID, process.pid, options) is None:
            return False
        # It has ended but is not collected, so the number of its group still is its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.returncode = started.wait()
        if process.returncode in WITHOUT_WORKERS:
            process.asked = True
        del self._running[process.pid]
        self._ended.append(process)
        return True

    def _drain(self) -> None:
        """Reads the rest of the pipes. Every writer is dead, except a daemon in a session of its own."""
        end = time.monotonic() + DRAIN_S
        while len(self._selector.get_map()) > 1 and time.monotonic() < end:
            self._pass_on(TICK_S)
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake_read:
                prefix, splitter, printer = key.data
                self._write(printer.lines, prefix, splitter.end())
                key.fileobj.close()  # type: ignore[union-attr]
