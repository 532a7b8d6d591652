"""One run of a function on a cluster of processes of this machine, from its start to its results."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from .._extras import load
from ..errors import ClosedError, FptpsError, NodeLostError, RankError, TimeoutError
from ._commands import NODE, cluster_commands, later, reserved_port
from ._folder import temporary_folder
from ._process import Command, Process, name_of
from ._supervisor import DRAIN_S, Supervisor

KILL_S: Final = 3.0
"""How long the processes of a stopped run may take to end after SIGTERM: their results are not needed."""
END_S: Final = 2 * KILL_S + DRAIN_S + 5.0
"""How long all processes take to end at most, after stop()."""

RANK: Final = (sys.executable, "-m", "fptps.cluster._rank")

_running: weakref.WeakSet[Run] = weakref.WeakSet()


class Outcome(NamedTuple):
    """The outcome of the function on one worker: its value, or the exception that it raised."""

    value: Any
    error: BaseException | None


class Run:
    """One run of a function on a cluster, made by LocalCluster.start(). As a context manager it ends with its block."""

    def __init__(
        self, workers: int, servers: int, timeout: float, environment: Mapping[str, str], task: tuple[Any, Any]
    ) -> None:
        self._workers = workers
        self._servers = servers
        self._end = time.monotonic() + timeout
        self._timeout = timeout
        self._outcomes: list[Outcome] | None = None
        self._left_open: list[Process] = []  # those whose function returned without closing its KVWorker
        self._pickles: dict[Process, bytes] = {}  # the result file of each worker, once all processes have ended
        self._trouble: BaseException | None = None
        self._cloudpickle = load("cloudpickle", "testing", "LocalCluster")
        self._pickled = self._pickle(task)
        self._worker: Command | None = None  # one of the commands of the workers
        self._folder = Path()  # of functions and results, while the processes run
        self._added = itertools.count(1)
        self._supervisor: Supervisor | None = None
        self._started = threading.Event()
        # The processes end with the thread that starts them, so a thread of this run's own starts them, waits for
        # their end and cleans up.
        self._thread = threading.Thread(
            target=self._supervise, args=({**os.environ, **environment},), name="fptps-run", daemon=True
        )
        _running.add(self)
        self._thread.start()
        self._started.wait()

    @property
    def processes(self) -> list[Process]:
        """All processes: role ("scheduler", "server", "worker"), rank, pid, and returncode once they have ended. Those
        that were added come last."""
        return [] if self._supervisor is None else list(self._supervisor.processes)

    def process(self, role: str, rank: int = 0) -> Process:
        """One of the processes, of several schedulers the latest; KeyError if there is none."""
        for process in reversed(self.processes):
            if (process.role, process.rank) == (role, rank):
                return process
        raise KeyError(f"there is no {name_of(role, rank)}")

    def add_worker(self, function: Callable[..., Any] | None = None, *args: Any) -> Process:
        """Starts one more worker, for a cluster with FPTPS_RECOVERY=1 that trains; FPTPS_MAX_WORKERS has to permit it.

        It calls function(*args), or without a function what the others call. It takes part once the others admit it
        (KVWorker.admit); from then on the process has its rank, which is None before. Its result follows those of the
        others. ClosedError if the run ends.
        """
        number = next(self._added)
        task, result = self._folder / f"task +{number}", self._folder / f"result +{number}"
        pickled = self._pickled if function is None else self._pickle((function, args))
        with contextlib.suppress(FileNotFoundError):  # the run has ended
            task.write_bytes(pickled)
        return self._add("worker", [*RANK, str(task), str(result)])

    def add_server(self) -> Process:
        """Starts one more server, for a cluster with FPTPS_RECOVERY=1. ClosedError if the run ends."""
        return self._add("server", [*NODE, "server"])

    def restart_scheduler(self) -> Process:
        """Kills the scheduler, if it has not ended, and starts another one at its address, for a cluster with
        FPTPS_RECOVERY=1. ClosedError if the run ends."""
        self._check_recovery("the scheduler can be started again in")
        process = None if self._supervisor is None else self._supervisor.restart_scheduler()
        if process is None:
            raise ClosedError("the run has ended, or ends: no scheduler can be started")
        return process

    def outcomes(self) -> list[Outcome]:
        """Waits for the end of all processes and returns the outcome of each worker: by rank, and then those of added
        ones, in the order in which they were added. TimeoutError as for results()."""
        if self._outcomes is None:
            self._join()
            self._outcomes = [self._outcome(process) for process in self._all_workers()]
        return self._outcomes

    def results(self) -> list[Any]:
        """Waits for the end of all processes and returns the results by rank, and then those of added workers, in the
        order in which they were added. Errors as of LocalCluster.run().

        None is the result of a worker without which the cluster went on to its end (FPTPS_RECOVERY=1), and of one that
        was added too late to be admitted."""
        outcomes = dict(zip(self._all_workers(), self.outcomes()))
        assert self._supervisor is not None
        for process in self._all_workers():
            lost = process.died_alone or isinstance(outcomes[process].error, NodeLostError)
            if process.returncode and lost and self._supervisor.missed(process):
                outcomes[process] = Outcome(None, None)
        failures = self._supervisor.failures()
        first = [outcomes[p].error for p in failures if p.role == "worker"]
        errors = [error for error in [*first, *(outcome.error for outcome in outcomes.values())] if error is not None]
        own = [error for error in errors if not isinstance(error, NodeLostError)]
        if own:
            raise own[0]
        # If a process was killed, that is the cause: the other workers could not have closed in good order.
        if failures and self._left_open and not any(p.returncode and p.returncode < 0 for p in failures):
            process = self._left_open[0]
            raise NodeLostError(
                f"{process.name} (pid {process.pid}) ended without closing its KVWorker, so the others lost it: "
                "use `with fptps.KVWorker()`, or call close()",
                role=process.role,
                rank=process.rank,
            )
        if errors:
            raise errors[0]
        for process in failures:
            raise NodeLostError(
                f"{process.name} (pid {process.pid}) {process.how_it_ended()}: see its output",
                role=process.role,
                rank=process.rank,
            )
        return [outcome.value for outcome in outcomes.values()]

    def stop(self) -> None:
        """Ends all processes that still run, and waits for their end."""
        if self._supervisor is not None and self._thread.is_alive():
            self._supervisor.stop()
            self._thread.join(END_S)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _supervise(self, environment: Mapping[str, str]) -> None:
        try:
            with reserved_port() as port, temporary_folder() as self._folder:
                task = self._folder / "task"
                task.write_bytes(self._pickled)
                program = [*RANK, str(task)]
                commands = cluster_commands(
                    self._workers,
                    self._servers,
                    port,
                    lambda rank: [*program, str(self._folder / f"result {rank}")],
                    environment,
                )
                self._worker = commands[-1]
                self._supervisor = Supervisor(commands, kill=KILL_S, awaits_scheduler=True, started=self._started)
                self._supervisor.run()
                for process in self._all_workers():
                    result = Path(self._supervisor.command(process).arguments[-1])
                    with contextlib.suppress(FileNotFoundError):  # it ended before
                        self._pickles[process] = result.read_bytes()
        except BaseException as error:
            self._trouble = error
        finally:
            self._started.set()

    def _add(self, role: str, arguments: list[str]) -> Process:
        if self._supervisor is not None and self._worker is not None:
            self._check_recovery("processes can be added to")
            process = self._supervisor.add(later(self._worker, role, arguments))
            if process is not None:
                return process
        raise ClosedError("the run has ended, or ends: no process can be added")

    def _check_recovery(self, what: str) -> None:
        if self._worker is not None and self._worker.environment.get("FPTPS_RECOVERY") != "1":
            raise ValueError(f"{what} a cluster with FPTPS_RECOVERY=1: LocalCluster(environment=)")

    def _pickle(self, task: tuple[Any, Any]) -> bytes:
        """A function and its arguments, for _rank."""
        return bytes(self._cloudpickle.dumps((list(sys.path), self._cloudpickle.dumps(task))))

    def _join(self) -> None:
        try:
            self._thread.join(max(0.0, self._end - time.monotonic()))
        except BaseException:  # Ctrl-C
            self.stop()
            raise
        if self._thread.is_alive():
            names = ", ".join(process.name for process in self.processes if process.returncode is None)
            self.stop()
            raise TimeoutError(f"the run was ended after {self._timeout:g} s; still running were {names}")
        if self._trouble is not None:
            raise FptpsError(f"the processes could not be run: {self._trouble}") from self._trouble

    def _all_workers(self) -> list[Process]:
        """By rank, and then those that were added."""
        return [process for process in self.processes if process.role == "worker"]

    def _outcome(self, process: Process) -> Outcome:
        pickled = self._pickles.pop(process, None)
        if pickled is None:
            text = f"{process.name} (pid {process.pid}) {process.how_it_ended()} before the function returned"
            return Outcome(None, NodeLostError(text, role=process.role, rank=process.rank))
        try:
            value, error, trace, left_open = self._cloudpickle.loads(pickled)
        except Exception as problem:
            return Outcome(None, RankError(f"{process.name}: its result cannot be unpickled: {problem!r}"))
        if left_open:
            self._left_open.append(process)
        if trace is None:
            return Outcome(value, None)
        cause = RankError(f"\n{process.name} (pid {process.pid}):\n{trace}")
        if error is None:
            return Outcome(None, cause)
        error.__cause__ = cause
        return Outcome(None, error)


def _stop_all() -> None:
    """At the end of the interpreter: ends the runs that are still under way, so that no process of them is left."""
    for run in list(_running):
        run.stop()


atexit.register(_stop_all)
