"""One run of a function on a cluster of processes of this machine, from its start to its results."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from .._extras import load
from ..errors import FptpsError, NodeLostError, RankError, TimeoutError
from ._commands import cluster_commands, reserved_port
from ._process import Process, name_of
from ._supervisor import DRAIN_S, Supervisor

KILL_S: Final = 3.0
"""How long the processes of a stopped run may take to end after SIGTERM: their results are not needed."""
END_S: Final = 2 * KILL_S + DRAIN_S + 5.0
"""How long all processes take to end at most, after stop()."""
TASK: Final = "task.pickle"

_running: weakref.WeakSet[Run] = weakref.WeakSet()


class Outcome(NamedTuple):
    """The outcome of the function on one rank: its value, or the exception that it raised."""

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
        self._left_open: list[int] = []  # the ranks whose function returned without closing its KVWorker
        self._pickles: dict[int, bytes] = {}  # the result file of each rank, once all processes have ended
        self._trouble: BaseException | None = None
        self._cloudpickle = load("cloudpickle", "testing", "LocalCluster")
        self._task = self._cloudpickle.dumps((list(sys.path), self._cloudpickle.dumps(task)))
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
        """All processes: role ("scheduler", "server", "worker"), rank, pid, and returncode once they have ended."""
        return [] if self._supervisor is None else list(self._supervisor.processes)

    def process(self, role: str, rank: int = 0) -> Process:
        """One of the processes; KeyError if there is none."""
        for process in self.processes:
            if (process.role, process.rank) == (role, rank):
                return process
        raise KeyError(f"there is no {name_of(role, rank)}")

    def outcomes(self) -> list[Outcome]:
        """Waits for the end of all processes and returns the outcome of each rank. TimeoutError as for results()."""
        if self._outcomes is None:
            self._join()
            self._outcomes = [self._outcome(rank) for rank in range(self._workers)]
        return self._outcomes

    def results(self) -> list[Any]:
        """Waits for the end of all processes and returns the results by rank. Errors as of LocalCluster.run().

        None is the result of a worker without which the cluster went on to its end (FPTPS_RECOVERY=1)."""
        outcomes = self.outcomes()
        assert self._supervisor is not None
        for rank in self._supervisor.missed():
            outcomes[rank] = Outcome(None, None)
        failed = [p.rank for p in self._supervisor.failures() if p.role == "worker"]
        order = failed + [rank for rank in range(self._workers) if rank not in failed]
        errors = [error for rank in order if (error := outcomes[rank].error) is not None]
        own = [error for error in errors if not isinstance(error, NodeLostError)]
        failures = self._supervisor.failures()
        if own:
            raise own[0]
        # If a process was killed, that is the cause: the other workers could not have closed in good order.
        if failures and self._left_open and not any(p.returncode and p.returncode < 0 for p in failures):
            process = self.process("worker", self._left_open[0])
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
        return [outcome.value for outcome in outcomes]

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
            with reserved_port() as port, _folder() as folder:
                (folder / TASK).write_bytes(self._task)
                program = [sys.executable, "-m", "fptps.cluster._rank", str(folder)]
                commands = cluster_commands(
                    self._workers, self._servers, port, lambda rank: [*program, str(rank)], environment
                )
                self._supervisor = Supervisor(commands, kill=KILL_S, started=self._started)
                self._supervisor.run()
                for rank in range(self._workers):
                    with contextlib.suppress(FileNotFoundError):  # it ended before
                        self._pickles[rank] = (folder / f"{rank}.pickle").read_bytes()
        except BaseException as error:
            self._trouble = error
        finally:
            self._started.set()

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

    def _outcome(self, rank: int) -> Outcome:
        process = self.process("worker", rank)
        pickled = self._pickles.pop(rank, None)
        if pickled is None:
            text = f"{process.name} (pid {process.pid}) {process.how_it_ended()} before the function returned"
            return Outcome(None, NodeLostError(text, role=process.role, rank=rank))
        try:
            value, error, trace, left_open = self._cloudpickle.loads(pickled)
        except Exception as problem:
            return Outcome(None, RankError(f"{process.name}: its result cannot be unpickled: {problem!r}"))
        if left_open:
            self._left_open.append(rank)
        if trace is None:
            return Outcome(value, None)
        cause = RankError(f"\n{process.name} (pid {process.pid}):\n{trace}")
        if error is None:
            return Outcome(None, cause)
        error.__cause__ = cause
        return Outcome(None, error)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder. Unlike tempfile's, a forked child that ends does not remove it."""
    folder = Path(tempfile.mkdtemp(prefix="fptps-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stop_all() -> None:
    """At the end of the interpreter: ends the runs that are still under way, so that no process of them is left."""
    for run in list(_running):
        run.stop()


atexit.register(_stop_all)
