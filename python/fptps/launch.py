"""Runs a whole cluster as processes of this machine, and sees to it that all of them end."""

from __future__ import annotations

import collections
import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NamedTuple

from ._node import NO_WORKERS
from .output import LineSplitter, Printer

HOST: Final = "127.0.0.1"
GRACE_S: Final = 5.0
"""How long processes may take to end by themselves once one has failed."""
DONE_S: Final = 4.0
"""How long the scheduler and servers may take to end by themselves once all workers have ended: they left together."""
KILL_S: Final = 3.0
"""How long they may take after a signal, before SIGKILL."""
DRAIN_S: Final = 1.0
"""How long output is read on that a daemon keeps open after the end of its cluster's process."""
TICK_S: Final = 0.05

SPAWN: Final = str(Path(__file__).with_name("_spawn.py"))


class Command(NamedTuple):
    """A process to start."""

    role: str
    rank: int
    arguments: list[str]
    environment: dict[str, str]


@dataclass
class Process:
    """A process of the cluster."""

    role: str
    rank: int
    pid: int
    returncode: int | None = None
    """None while it runs; the exit code, or the negative number of the signal that killed it."""
    asked: bool = field(default=False, repr=False)
    """It was told to end by us, so that how it ended is no news."""

    @property
    def name(self) -> str:
        """Its role and rank: "scheduler", "server 0", "worker 3"."""
        return name_of(self.role, self.rank)

    @property
    def exit_code(self) -> int:
        """The exit code as a shell tells it: 128 + n for signal n; 0 while it runs."""
        code = self.returncode or 0
        return code if code >= 0 else 128 - code

    def how_it_ended(self) -> str:
        """One clause for a person."""
        if self.returncode is None:
            return "is running"
        if self.returncode < 0:
            return f"was killed by {signal.Signals(-self.returncode).name}"
        return f"ended with exit code {self.returncode}"


def name_of(role: str, rank: int) -> str:
    """A process's name in output and errors."""
    return role if role == "scheduler" else f"{role} {rank}"


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A free TCP port of the loopback address for the scheduler, which no other program gets meanwhile.

    It is bound here but not listened on, with SO_REUSEADDR: Linux lets another such socket that names this very port
    bind it too and listen, as ZeroMQ's does, and gives it to nobody who asks for any free one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((HOST, 0))
        yield reservation.getsockname()[1]


def cluster_commands(
    workers: int,
    servers: int,
    port: int,
    worker_arguments: Callable[[int], list[str]],
    environment: Mapping[str, str],
) -> list[Command]:
    """The processes of a cluster with its scheduler at a port of this machine; environment is the base of theirs."""
    shared = {
        "PYTHONUNBUFFERED": "1",  # output arrives as it is made
        **environment,
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": HOST,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "FPTPS_TOKEN": secrets.token_hex(16),
    }
    shared.pop("PORT", None)  # one port for all of them would be theirs in turn
    node = [sys.executable, "-m", "fptps"]
    commands = [Command("scheduler", 0, [*node, "scheduler"], {**shared, "DMLC_ROLE": "scheduler"})]
    for rank in range(servers):
        own = {"DMLC_ROLE": "server", "DMLC_SERVER_ID": str(rank)}
        commands.append(Command("server", rank, [*node, "server"], {**shared, **own}))
    for rank in range(workers):
        own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)}
        commands.append(Command("worker", rank, worker_arguments(rank), {**shared, **own}))
    return commands


class Ending:
    """Decides when processes that have not ended get which signal. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._plan: list[tuple[float, int]] = []  # when comes which signal, in this order
        self._begun = False
        self._stopped = False

    def expect(self, now: float, seconds: float) -> None:
        """All should end by themselves within that time: one has failed, or the work is done."""
        end = now + seconds
        if not self._begun and (not self._plan or end < self._plan[0][0]):
            self._plan = [(end, signal.SIGTERM), (end + KILL_S, signal.SIGKILL)]

    def stop(self, now: float, number: int) -> None:
        """All are to end now, by this signal; a second time: at once."""
        self._plan = [(now, signal.SIGKILL)] if self._stopped else [(now, number), (now + KILL_S, signal.SIGKILL)]
        self._begun = self._stopped = True

    def due(self, now: float) -> int | None:
        """The signal to send now, if any."""
        number = None
        while self._plan and self._plan[0][0] <= now:
            number = self._plan.pop(0)[1]
            self._begun = True
        if number is not None and not self._plan:
            self._plan = [(now + KILL_S, signal.SIGKILL)]  # until none is left
        return number


class Supervisor:
    """Runs processes to their end: passes on their output, and ends all of them when one fails.

    Each process leads a process group of its own, which ends with it. None outlives the thread that calls run(), even
    if that is killed. keep_going: the others run on when one fails; the run ends when all workers have ended.
    """

    def __init__(
        self,
        commands: list[Command],
        grace: float = GRACE_S,
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
        self._ending = Ending()
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
            self._tell_of_early_ends()
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
        """Ends all processes by a signal, after 3 s or when called again by SIGKILL. For any thread, and for signal
        handlers; does not wait."""
        self._requests.append(number)
        with contextlib.suppress(OSError):  # it has ended, or enough wake-ups are there
            os.write(self._wake_write, b"\0")

    def exit_code(self) -> int:
        """What run() returns."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return max((p.exit_code for p in self.processes if not p.asked), default=0)

    def failures(self) -> list[Process]:
        """The processes that failed by themselves, in the order in which they ended."""
        return [p for p in self._ended if p.returncode and not p.asked]

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
        process = Process(command.role, command.rank, started.pid)
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
        except BrokenPipeError:  # nobody reads on: `fptps run ... | head`
            if signal.SIGPIPE not in self._requests and self.stopped_by is None:
                self._requests.append(signal.SIGPIPE)

    def _step(self, now: float) -> None:
        while self._requests:
            number = self._requests.popleft()
            self.stopped_by = self.stopped_by or number
            # SIGPIPE is our own affair; the processes are to end as by any order.
            self._ending.stop(now, signal.SIGTERM if number == signal.SIGPIPE else number)
        for process in self.processes:
            if self._reap(process) and process.returncode and not process.asked:
                self._tell(f"fptps: {process.name} (pid {process.pid}) {process.how_it_ended()}")
                if not self._keep_going:
                    self._ending.expect(now, self._grace)
        if self._workers_left and all(p.returncode is not None for p in self.processes if p.role == "worker"):
            self._workers_left = False
            self._ending.expect(now, min(self._grace, DONE_S))
            for process in self.processes:
                if process.pid in self._running and not process.asked:
                    os.kill(process.pid, NO_WORKERS)
        due = self._ending.due(now)
        if due is not None and self._running:
            if self.stopped_by is None:
                names = ", ".join(p.name for p in self.processes if p.returncode is None)
                self._tell(f"fptps: still running, ended by {signal.Signals(due).name}: {names}")
            self._signal(due)

    def _tell(self, text: str) -> None:
        self._write(self._err.lines, "", [text.encode()])

    def _tell_of_early_ends(self) -> None:
        """Names the workers that ended well in a run that failed, unless the cluster ended in good order before."""
        early = ", ".join(f"{p.name} (pid {p.pid})" for p in self._ended if p.role == "worker" and p.returncode == 0)
        orderly = all(p.returncode == 0 for p in self.processes if p.role == "scheduler")
        if early and not orderly and self.failures() and self.stopped_by is None:
            self._tell(f"fptps: ended with exit code 0, but before the cluster had ended in good order: {early}")

    def _signal(self, number: int) -> None:
        """Sends a signal to every process that has not ended, and its group."""
        for process in self.processes:
            if process.pid in self._running:
                process.asked = True
                for each in (number, signal.SIGCONT):  # a stopped process hears nothing but SIGKILL
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
        if process.returncode in (-NO_WORKERS, 128 + NO_WORKERS):  # before, or after, it had set its handler
            process.asked = True
        del self._running[process.pid]
        self._ended.append(process)
        return True

    def _drain(self) -> None:
        """Reads what the pipes still hold. Every writer is dead, but for a daemon in a session of its own."""
        end = time.monotonic() + DRAIN_S
        while len(self._selector.get_map()) > 1 and time.monotonic() < end:
            self._pass_on(TICK_S)
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake_read:
                prefix, splitter, printer = key.data
                self._write(printer.lines, prefix, splitter.end())
                key.fileobj.close()  # type: ignore[union-attr]
