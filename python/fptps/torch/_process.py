"""The one KVWorker of this process, which the functions of fptps.torch share."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import secrets
import socket
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from torch.distributed.rendezvous import rendezvous

from ..cluster._commands import reserved_port
from ..cluster._supervisor import SPAWN
from ..worker import KVWorker
from ._launch import Launched, launched, master_of

if TYPE_CHECKING:
    from ._optimizer import DistributedOptimizer

SCHEDULER_END_S: Final = 10.0
"""How long the scheduler that this process has started may take to end after the cluster."""

_log = logging.getLogger("fptps")


class Process:
    """This process's place in its cluster, from init() to shutdown()."""

    def __init__(self, worker: KVWorker, process: Launched | None, scheduler: Scheduler | None = None) -> None:
        self.worker = worker
        self.pid = os.getpid()
        self.numbers = itertools.count()
        """Of the optimizers that are made: the same on all workers, as all make theirs in the same order."""
        self.calls: dict[str, int] = {}
        """The keys of the tensors that push_pull() has declared, with the number of calls."""
        self.optimizers: list[weakref.ref[DistributedOptimizer]] = []
        """All that were made, in the same order on all workers."""
        self.updating: set[DistributedOptimizer] = set()
        """Those with updates to come, which have to live until then."""
        self._scheduler = scheduler
        self.local_rank, self.local_size = self._locate(process)

    def _locate(self, process: Launched | None) -> tuple[int, int]:
        """This worker's number on its host, and how many workers there are."""
        if self.worker.num_workers == 1:
            return 0, 1
        own = (process.local_rank, process.local_size) if process else (None, None)
        found = self.worker.allgather_object((socket.gethostname(), *own))
        here = [rank for rank, (host, *_) in enumerate(found) if host == found[self.worker.rank][0]]
        rank, size = own
        return here.index(self.worker.rank) if rank is None else rank, len(here) if size is None else size

    def living(self) -> list[DistributedOptimizer]:
        """The optimizers that are in use."""
        return [optimizer for reference in self.optimizers if (optimizer := reference()) is not None]

    def finish(self) -> None:
        """Waits for the updates to come, of all optimizers."""
        for optimizer in self.living():
            optimizer.flush()

    def close(self, reason: BaseException | None = None) -> None:
        """Leaves the cluster: together with the other workers, or after an exception at once."""
        try:
            if reason is None:
                self.finish()
        finally:
            kind = None if reason is None else type(reason)
            try:
                self.worker.__exit__(kind, reason, None)
            finally:
                if self._scheduler is not None and self.pid == os.getpid():
                    self._scheduler.end(SCHEDULER_END_S)


class Scheduler:
    """A scheduler that this process has started on its host, and which ends with it at the latest."""

    def __init__(self, host: str, port: int, workers: int, token: str) -> None:
        command = [sys.executable, "-m", "fptps", "scheduler", "--quiet", "--host", host, "--port", str(port)]
        command += ["-n", str(workers), "-s", "0"]
        own = {"FPTPS_TOKEN": token, "DMLC_NODE_HOST": host}
        self._process = subprocess.Popen(
            [sys.executable, SPAWN, str(os.getpid()), *command],
            env={**os.environ, **own},
            start_new_session=True,  # Ctrl-C is for the workers: the scheduler tells them of each other's end
        )

    def end(self, seconds: float) -> None:
        """Waits for its end, and kills it if that takes too long."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _start() -> Process:
    process = launched(os.environ)
    if process is not None and not os.environ.get("DMLC_PS_ROOT_URI"):
        started = _meet(process)
    else:
        started = Process(KVWorker(), process)
    worker = started.worker
    _log.info(
        "worker %d of %d, started %s; on this host %d of %d",
        worker.rank,
        worker.num_workers,
        "by fptps" if os.environ.get("DMLC_PS_ROOT_URI") else f"by {process.by}" if process else "alone",
        started.local_rank,
        started.local_size,
    )
    return started


def _meet(process: Launched) -> Process:
    """A cluster of a launcher's processes. They meet in torch.distributed's store, and rank 0 starts the scheduler."""
    name, _ = master_of(os.environ, process)
    host = socket.gethostbyname(name)
    store, _, _ = next(rendezvous("env://", process.rank, process.size))
    _stores[:] = [store]  # rank 0's may be the one that all others ask
    key = f"fptps/scheduler/{next(_meetings)}"
    scheduler = None
    with contextlib.ExitStack() as stack:
        if process.rank == 0:
            port = stack.enter_context(reserved_port(host))
            token = os.environ.get("FPTPS_TOKEN") or secrets.token_hex(16)
            scheduler = Scheduler(host, port, process.size, token)
            store.set(key, f"{port} {token}")
        port_text, os.environ["FPTPS_TOKEN"] = store.get(key).decode().split(" ", 1)
        os.environ["DMLC_WORKER_ID"] = str(process.rank)
        try:
            return Process(KVWorker(f"{host}:{port_text}", process.size, 0), process, scheduler)
        except BaseException:
            if scheduler is not None:
                scheduler.end(0.0)
            raise


_stores: list[Any] = []
_meetings = itertools.count()  # a program may call init() again after shutdown()
_current: list[Process] = []  # empty: not initialised


def init() -> None:
    """Joins the cluster, or begins to run alone. Further calls do nothing.

    - Under `fptps run`, or wherever DMLC_PS_ROOT_URI and its companions name a cluster: that one.
    - Under torchrun: a cluster of its processes without servers, whose scheduler rank 0 starts; all learn its address
      through torch.distributed's store. The same under mpirun and srun if MASTER_ADDR and MASTER_PORT are set.
    - Else alone: every sum is this process's own contribution, and a warning says so.

    The log ("fptps", INFO) has one line with what was found. Raises ConfigError where a launcher's processes cannot
    meet, and what KVWorker() raises. The cluster is left by shutdown(), or when the program ends.
    """
    if not is_initialized():
        _current[:] = [_start()]


def shutdown() -> None:
    """Leaves the cluster, together with the other workers. Without init(), and again, it does nothing."""
    if is_initialized():
        _current.pop().close()


def is_initialized() -> bool:
    """Whether init() was called, and shutdown() was not since."""
    return bool(_current)


def current() -> Process:
    """What init() has made. RuntimeError without it."""
    if not _current:
        raise RuntimeError("fptps.torch is not initialised: call fptps.torch.init() first, on every worker")
    return _current[0]


def rank() -> int:
    """This worker's number, from 0 to size() - 1. RuntimeError before init()."""
    return current().worker.rank


def size() -> int:
    """The number of workers. RuntimeError before init()."""
    return current().worker.num_workers


def local_rank() -> int:
    """This worker's number among those of its host, from 0 to local_size() - 1. RuntimeError before init()."""
    return current().local_rank


def local_size() -> int:
    """The number of workers on this host. RuntimeError before init()."""
    return current().local_size


def _leave() -> None:
    """At the program's end. After an exception that nobody caught the others do not wait for this worker."""
    if is_initialized() and _current[0].pid == os.getpid():
        _current.pop().close(getattr(sys, "last_value", None))


atexit.register(_leave)
