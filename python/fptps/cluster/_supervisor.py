"""Runs the processes of a cluster to their end, whatever they do."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, NamedTuple

from .. import _logs, _report
from .._environment import REPORT
from .._node import NO_WORKERS
from ._causes import Causes, LastWords
from ._commands import later
from ._ending import KILL_S, Ending
from ._folder import temporary_folder
from ._output import Printer, Source
from ._process import Command, Process
from ._restarts import Restarts

GRACE_S: Final = 5.0
"""How long processes may take to end by themselves once one has failed."""
DONE_S: Final = 4.0
"""How long the scheduler and servers may take to end by themselves once all workers have ended: they left together."""
LATE_S: Final = 3.0
"""How long workers that came too late for the training, or that the others have given up, may take to end by themselves
once it has ended: one that leaves by an exception waits 1 s for an answer of the scheduler."""
PATIENCE_S: Final = 2.0
"""How long after a signal the processes that still run are named."""
DRAIN_S: Final = 1.0
"""How long output is still read after the end of all processes: a daemon that one has left may keep it open."""
TICK_S: Final = 0.05
MOST_READS: Final = 256
"""How often the output of a process that has ended is read at once."""

WITHOUT_WORKERS: Final = (-NO_WORKERS, 128 + NO_WORKERS)
"""The return codes of a node that NO_WORKERS has ended before it joined: without, and with, its signal handler set."""

SPAWN: Final = str(Path(__file__).with_name("_spawn.py"))


class _Start(NamedTuple):
    """How a process was started."""

    command: Command
    time: float
    report: Path | None
    """What the worker notes: see _report."""


class _Addition:
    """A process that add() or restart_scheduler() waits for."""

    def __init__(self, command: Command | None) -> None:
        self.command = command
        """None: another scheduler, in the place of the present one."""
        self.process: Process | None = None
        self.handled = threading.Event()


class Supervisor:
    """Runs processes to their end: passes on their output, and ends all of them when one fails.

    Each process leads a process group of its own, which ends with it. None outlives the thread that calls run(), even
    if that is killed. grace: how many seconds the others have to end by themselves when one fails, unless the cluster
    may go on without it; kill: how many from a signal to SIGKILL. keep_going: the others run on when one fails; the
    run ends when all workers have ended. restarts: how many processes may be started in the places of those that have
    died and without which the cluster may go on. awaits_scheduler: the others run on when a scheduler is killed that
    the cluster outlives, as restart_scheduler() may be called.
    """

    def __init__(
        self,
        commands: list[Command],
        grace: float = GRACE_S,
        kill: float = KILL_S,
        keep_going: bool = False,
        restarts: int = 0,
        awaits_scheduler: bool = False,
        started: threading.Event | None = None,
        out: IO[str] | None = None,
        err: IO[str] | None = None,
    ) -> None:
        self.processes: list[Process] = []
        self.stopped_by: int | None = None
        self._commands = commands
        self._started = started or threading.Event()
        self._running: dict[Process, subprocess.Popen[bytes]] = {}
        self._starts: dict[Process, _Start] = {}
        self._folder: Path | None = None  # for reports
        self._later: collections.Counter[str] = collections.Counter()  # how many were started later, by role
        self._restarts = Restarts(restarts)
        self._sources: dict[Process, list[tuple[IO[bytes], Source]]] = {}  # stdout and stderr
        self._causes = Causes()
        self._may_restart = restarts > 0
        self._adding = threading.Lock()  # of the next two
        self._additions: list[_Addition] = []
        self._closed = False
        self._late = Ending(kill)  # of workers that came too late for the training, or stand still when it has ended
        self._still: set[Process] = set()  # the latter
        self._ended: list[Process] = []  # in the order in which they ended
        self._workers_left = True
        self._ending = Ending(kill)
        self._kill = kill
        self._patience: float | None = None  # when to name the processes of a stopped run that still run
        self._grace = grace
        self._keep_going = keep_going
        self._awaits_scheduler = awaits_scheduler
        self._requests: collections.deque[int] = collections.deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._out = Printer(sys.stdout if out is None else out)
        self._err = Printer(sys.stderr if err is None else err)
        self._json = _logs.is_json(os.environ)

    def run(self) -> int:
        """Starts all processes and returns when all have ended: the worst exit code of those that ended by themselves,
        0 if all ended well, 128 + n if stop(n) was called."""
        folder = temporary_folder() if any(map(_spare, self._commands)) else contextlib.nullcontext()
        try:
            with folder as self._folder:
                self._run()
        finally:
            with self._adding:
                self._closed = True
            self._add_all(start=False)
        return self.exit_code()

    def _run(self) -> None:
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

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends all processes by a signal, and `kill` seconds later, or when called again, by SIGKILL.

        For any thread, and for signal handlers; does not wait.
        """
        self._requests.append(number)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is closed, or full of wake-ups
            os.write(self._wake_write, b"\0")

    def add(self, command: Command) -> Process | None:
        """Starts one more process, which run() then treats as the others. None: the run ends. For other threads."""
        return self._await(_Addition(command))

    def restart_scheduler(self) -> Process | None:
        """Kills the scheduler, if it has not ended, and starts another one at its address, for a cluster that outlives
        it. None: the run ends. For other threads."""
        return self._await(_Addition(None))

    def _await(self, addition: _Addition) -> Process | None:
        with self._adding:
            if self._closed:
                return None
            self._additions.append(addition)
        self._wake()
        addition.handled.wait()
        return addition.process

    def command(self, process: Process) -> Command:
        """How a process was started."""
        return self._starts[process].command

    def exit_code(self) -> int:
        """What run() returns."""
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return max((p.exit_code for p in self.failures()), default=0)

    def failures(self) -> list[Process]:
        """The processes that failed by themselves, in the order in which they ended; without those that died in a
        cluster that went on to its end without them, were replaced, or came too late. A worker that ended itself with
        an error counts, if none has replaced it."""
        return [p for p in self._ended if p.returncode and not p.asked and not self.missed(p)]

    def missed(self, process: Process) -> bool:
        """Whether a process died, or came too late, in a cluster that went on to its end without it."""
        return self._orderly() and (process.died_alone or process.replaced or process.too_late)

    def joined(self) -> bool:
        """Whether the cluster was ever complete: its scheduler did not end for lack of workers."""
        return not any(p.role == "scheduler" and p.returncode in WITHOUT_WORKERS for p in self.processes)

    def _over(self) -> bool:
        """Whether the cluster has ended."""
        scheduler = self._scheduler
        return scheduler is not None and scheduler.returncode is not None and not scheduler.replaced

    def _orderly(self) -> bool:
        """Whether the cluster has ended in good order."""
        return self._scheduler is None or self._scheduler.returncode == 0

    @property
    def _scheduler(self) -> Process | None:
        """The latest one."""
        return next((p for p in reversed(self.processes) if p.role == "scheduler"), None)

    def _start(self, command: Command) -> Process:
        environment, report = command.environment, None
        if _spare(command) and command.role == "worker":
            assert self._folder is not None
            report = self._folder / str(len(self.processes))
            report.touch()
            environment = {**environment, REPORT: str(report)}
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", SPAWN, str(os.getpid()), *command.arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        process = Process(command.role, command.rank, started.pid, spare=_spare(command))
        self._running[process] = started
        self._starts[process] = _Start(command, time.monotonic(), report)
        if command.rank is None:
            self._later[command.role] += 1
            process.later = self._later[command.role]
        self.processes.append(process)
        self._sources[process] = []
        for pipe, printer, stream in ((started.stdout, self._out, "stdout"), (started.stderr, self._err, "stderr")):
            assert pipe is not None
            frame = _logs.framed(process.role, process.rank, stream) if self._json else None
            source = Source(process.name, frame, printer, LastWords() if stream == "stderr" else None)
            self._sources[process].append((pipe, source))
            self._selector.register(pipe, selectors.EVENT_READ, source)
        return process

    def _pass_on(self, timeout: float) -> None:
        """Passes on the output that comes within the time."""
        for key, _ in self._selector.select(timeout):
            if key.fd == self._wake_read:
                os.read(self._wake_read, 4096)
                continue
            self._read(key.fileobj, key.data)  # type: ignore[arg-type]
        now = time.monotonic()
        for sources in self._sources.values():
            for _, source in sources:
                self._write(source.expire, now)

    def _read(self, pipe: IO[bytes], source: Source) -> None:
        data = os.read(pipe.fileno(), 65536)
        if data:
            self._write(source.feed, data)
        else:
            self._write(source.end)
            self._selector.unregister(pipe)
            pipe.close()

    def _last_words(self, process: Process) -> LastWords:
        """Reads what a process that has ended wrote before, as far as a daemon that it has left does not write on."""
        for pipe, source in self._sources[process]:
            reads = 0
            while not pipe.closed and reads < MOST_READS and select.select([pipe], [], [], 0)[0]:
                self._read(pipe, source)
                reads += 1
        words = self._sources[process][1][1].words
        assert words is not None
        return words

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
        ended = [process for process in self.processes if self._reap(process)]
        for process in self.processes:
            if process in ended or process.returncode is None:
                self._read_report(process)
        for process in ended:
            if process.returncode and not process.asked:
                self._died(process, now)
        self._replace(now)
        self._add_all(start=not self._ending.planned and not self._over())
        workers = [p for p in self.processes if p.role == "worker"]
        if self._workers_left and None not in [p.returncode for p in workers] and not self._restarts.planned("worker"):
            self._workers_left = False
            self._ending.expect(now, min(self._grace, DONE_S))
            for process in self.processes:
                if process in self._running and not process.asked:
                    os.kill(process.pid, NO_WORKERS)
        due = self._ending.due(now)
        names = _names([p for p in self.processes if p.returncode is None])
        if due is not None and names:
            if self.stopped_by is None or due == signal.SIGKILL:
                self.tell(f"fptps: still running, ended by {signal.Signals(due).name}: {names}")
            self._signal(due)
        elif self._patience is not None and now >= self._patience and names:
            self.tell(f"fptps: still running, killed {self._kill:g} s after the signal, or by a second one: {names}")
            self._patience = None

    def _died(self, process: Process, now: float) -> None:
        """Plans a restart, where the cluster may go on without the process, or else the end."""
        text = f"fptps: {process.name} (pid {process.pid}) {process.how_it_ended()}"
        outlived = process.spare or self._outlives(process)
        if self._may_restart and outlived and not process.left and not self._ending.planned:
            process.replaced = self._restarts.plan(now, process, now - self._starts[process].time)
            text += "" if process.replaced else ", and no restart is left"
        words = self._last_words(process)
        if words.loss:
            words.drop()
        for line in self._causes.ended(process, text, words):
            self.tell(line)
        # The others would wait for it, as the cluster was never complete.
        stuck = self._may_restart and not process.replaced and not any(p.takes_part for p in self.processes)
        goes_on = process.spare or process.replaced or (outlived and self._awaits_scheduler)
        if not self._keep_going and (stuck or not goes_on):
            self._ending.expect(now, self._grace)

    def _outlives(self, process: Process) -> bool:
        """Whether the cluster outlives a scheduler that has ended: it was killed, and may have another in its place."""
        environment, code = self.command(process).environment, process.returncode or 0
        recovers = environment.get("FPTPS_RECOVERY") == "1" and environment.get("FPTPS_SCHEDULER_TIMEOUT") != "0"
        return process.role == "scheduler" and recovers and (code < 0 or code > 128)

    def _replace(self, now: float) -> None:
        """Starts the processes that take the places of dead ones, and ends those that came too late."""
        if self._ending.planned or self._over():
            self._restarts.cancel()
        if self._over() and self._orderly():
            self._late.expect(now, LATE_S)
        for dead in self._restarts.due(now):
            command = self.command(dead)
            # Before, it takes the rank of the dead one; a scheduler has none.
            begun = dead.role != "scheduler" and any(p.takes_part for p in self.processes)
            process = self._start(later(command) if begun else command)
            left = "1 restart is" if self._restarts.left == 1 else f"{self._restarts.left} restarts are"
            self.tell(
                f"fptps: started {process.name} (pid {process.pid}) in the place of {dead.name}, which "
                f"{dead.how_it_ended()}; {left} left"
            )
        due = self._late.due(now)
        if due is None:
            return
        running = [p for p in self.processes if p.returncode is None]
        self._still |= {p for p in running if p.given_up and _stands_still(p.pid)}
        late, still = [p for p in running if p.too_late], [p for p in running if p in self._still]
        by = signal.Signals(due).name
        if late:
            self.tell(f"fptps: came too late for the training, ended by {by}: {_names(late)}")
        if still:
            self.tell(f"fptps: stood still when the training ended, ended by {by}: {_names(still)}")
        self._signal(due, late + still)

    def _add_all(self, start: bool) -> None:
        """Starts, or refuses, the processes that add() and restart_scheduler() wait for."""
        while self._additions:
            with self._adding:
                addition = self._additions.pop(0)
            try:
                if addition.command is None:
                    addition.process = self._start_scheduler()
                elif start:
                    addition.process = self._start(addition.command)
            finally:
                addition.handled.set()

    def _start_scheduler(self) -> Process | None:
        """Another scheduler, in the place of the present one; None if the cluster has ended, or ends."""
        dead = self._scheduler
        if dead is None or self._ending.planned or (dead.returncode is not None and not self._outlives(dead)):
            return None
        if dead.returncode is None:
            dead.asked = True
            os.killpg(dead.pid, signal.SIGKILL)
            self._reap(dead, wait=True)
        dead.replaced = True
        return self._start(self.command(dead))

    def _read_report(self, process: Process) -> None:
        """Reads what a worker has noted, while that may change."""
        start = self._starts[process]
        if start.report is None or (process.takes_part and process.returncode is None):
            return
        report = _report.read(start.report)
        if report.rank is not None and not process.takes_part:
            process.takes_part, process.rank = True, report.rank
            if process.later:
                self.tell(f"fptps: {process.name} (pid {process.pid}) takes part as worker {process.rank}")
        process.left = report.left

    def tell(self, text: str) -> None:
        """Prints a line of the launcher's own."""
        if self._json:
            said = text.removeprefix("fptps: ")
            text = _logs.line(True, logging.WARNING, said, "fptps", ("launcher", None), {})
        self._write(self._err.lines, "", [text.encode()])

    def _report_early_ends(self) -> None:
        """Names the workers that ended well in a run that failed, unless the cluster ended in good order before."""
        early = ", ".join(f"{p.name} (pid {p.pid})" for p in self._ended if p.role == "worker" and p.returncode == 0)
        if early and not self._orderly() and self.failures() and self.stopped_by is None:
            self.tell(f"fptps: ended with exit code 0, but before the cluster had ended in good order: {early}")

    def _signal(self, number: int, processes: list[Process] | None = None) -> None:
        """Sends a signal to every process, or some, that has not ended, and its group."""
        for process in self.processes if processes is None else processes:
            if process in self._running:
                process.asked = True
                for each in (number, signal.SIGCONT):  # a stopped process reacts to SIGKILL alone
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, each)

    def _reap(self, process: Process, wait: bool = False) -> bool:
        """Whether a process has ended just now. Its whole group ends then."""
        started = self._running.get(process)
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
        del self._running[process]
        self._ended.append(process)
        return True

    def _drain(self) -> None:
        """Reads the rest of the pipes. Every writer is dead, except a daemon in a session of its own."""
        end = time.monotonic() + DRAIN_S
        while len(self._selector.get_map()) > 1 and time.monotonic() < end:
            self._pass_on(TICK_S)
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake_read:
                self._write(key.data.end)
                key.fileobj.close()  # type: ignore[union-attr]
        for sources in self._sources.values():
            for _, source in sources:
                self._write(source.release)
        for line in self._causes.rest():
            self.tell(line)


def _names(processes: list[Process]) -> str:
    return ", ".join(process.name for process in processes)


def _stands_still(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def _spare(command: Command) -> bool:
    """Whether the cluster may go on without the process."""
    return command.role != "scheduler" and command.environment.get("FPTPS_RECOVERY") == "1"
