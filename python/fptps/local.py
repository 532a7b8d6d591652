"""LocalCluster: a function on a cluster of real processes of this machine, for tests and first steps."""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

import cloudpickle

from .errors import FptpsError, NodeLostError, RankError, TimeoutError
from .launch import DRAIN_S, KILL_S, Process, Supervisor, cluster_commands, name_of, reserved_port

END_S: Final = 2 * KILL_S + DRAIN_S + 5.0
"""How long the end of all processes takes at most, once they are told."""
TASK: Final = "task.pickle"

_running: weakref.WeakSet[Run] = weakref.WeakSet()


class Outcome(NamedTuple):
    """What became of the function on one rank: its value, or the exception that it raised."""

    value: Any
    error: BaseException | None


class LocalCluster:
    """A scheduler, servers and workers on this machine, each a process of its own.

        def train(step):
            with fptps.KVWorker() as kv:
                ...
                return accuracy

        accuracies = fptps.LocalCluster(workers=2, servers=1).run(train, 0.1)

    timeout: seconds that a whole run may take, from the first process on; environment: variables for all processes,
    besides those of this one. The function and its results travel by cloudpickle. Each run is a cluster of its own;
    as a context manager it ends the processes of every run that is left.
    """

    def __init__(
        self,
        workers: int,
        servers: int = 1,
        timeout: float = 300.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        numbers = f"workers={workers!r}, servers={servers!r}"
        try:
            self._workers, self._servers = operator.index(workers), operator.index(servers)
        except TypeError:
            raise TypeError(f"{numbers}: whole numbers are expected") from None
        if self._workers < 1 or self._servers < 0:
            raise ValueError(f"{numbers}: a cluster has at least one worker, and 0 or more servers")
        self._timeout = timeout
        self._environment = dict(environment or {})
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls function(*args) on every worker, which makes its own KVWorker(), and gives the results by rank.

        An exception of a rank is raised here, with that rank's traceback (RankError) as its cause: the one that came
        first, and NodeLostErrors, which follow from another rank's end, last. NodeLostError also tells of a process
        that was killed. TimeoutError if the run takes too long; all processes have ended in any case.
        """
        with self.start(function, *args) as run:
            return run.results()

    def start(self, function: Callable[..., Any], *args: Any) -> Run:
        """As run(), but returns as soon as all processes have been started."""
        run = Run(self._workers, self._servers, self._timeout, self._environment, (function, args))
        self._runs.add(run)
        return run

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for run in list(self._runs):
            run.stop()


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
        self._pickles: dict[int, bytes] = {}  # what each rank has left, once all processes have ended
        self._trouble: BaseException | None = None
        self._task = cloudpickle.dumps((list(sys.path), cloudpickle.dumps(task)))
        self._supervisor: Supervisor | None = None
        self._started = threading.Event()
        # The processes end with the thread that starts them, so it is one that waits for them. It cleans up, too.
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
        """Waits for the end of all processes and tells what became of each rank. TimeoutError as for results()."""
        if self._outcomes is None:
            self._join()
            self._outcomes = [self._outcome(rank) for rank in range(self._workers)]
        return self._outcomes

    def results(self) -> list[Any]:
        """Waits for the end of all processes and gives the results by rank; raises as LocalCluster.run() says."""
        outcomes = self.outcomes()
        assert self._supervisor is not None
        failed = [p.rank for p in self._supervisor.failures() if p.role == "worker"]
        order = failed + [rank for rank in range(self._workers) if rank not in failed]
        errors = [error for rank in order if (error := outcomes[rank].error) is not None]
        own = [error for error in errors if not isinstance(error, NodeLostError)]
        failures = self._supervisor.failures()
        if own:
            raise own[0]
        # Where a process was killed that is the cause, and who left its worker open had nobody to wait for.
        if failures and self._left_open and not any(p.returncode and p.returncode < 0 for p in failures):
            process = self.process("worker", self._left_open[0])
            raise NodeLostError(
                f"{process.name} (pid {process.pid}) ended without closing its KVWorker, so the others lost it: "
                "use `with fptps.KVWorker()`, or call close()"
            )
        if errors:
            raise errors[0]
        for process in failures:
            raise NodeLostError(f"{process.name} (pid {process.pid}) {process.how_it_ended()}: see its output")
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
                program = [sys.executable, "-m", "fptps._rank", str(folder)]
                commands = cluster_commands(
                    self._workers, self._servers, port, lambda rank: [*program, str(rank)], environment
                )
                self._supervisor = Supervisor(commands, started=self._started)
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
            return Outcome(None, NodeLostError(text))
        try:
            value, error, trace, left_open = cloudpickle.loads(pickled)
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
    """At the end of the interpreter: ends the runs that nobody has waited for, so that nothing of them is left."""
    for run in list(_running):
        run.stop()


atexit.register(_stop_all)
