"""LocalCluster: a function on a cluster of real processes of this machine, for tests and first steps."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from ._run import Run


class LocalCluster:
    """A scheduler, servers and workers on this machine, each a process of its own.

        def train(step):
            with fptps.KVWorker() as kv:
                ...
                return accuracy

        accuracies = fptps.LocalCluster(workers=2, servers=1).run(train, 0.1)

    - timeout: seconds that a whole run may take, from the first process on.
    - environment: variables for all processes, besides those of this one.

    The function and its results travel by cloudpickle. Each run is a cluster of its own. As a context manager it ends
    the processes of every run that is left.
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
        that was killed. TimeoutError if the run takes too long; all processes have ended in any case. None is the
        result of a worker without which the cluster went on to its end (FPTPS_RECOVERY=1).
        """
        with self.start(function, *args) as run:
            return run.results()

    def start(self, function: Callable[..., Any], *args: Any) -> Run:
        """As run(), but returns as soon as all processes have been started; Run.add_worker() and Run.add_server() start
        more."""
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
