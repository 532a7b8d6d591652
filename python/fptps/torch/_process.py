"""The one KVWorker of this process, which the functions of fptps.torch share."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import socket
import sys
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from .._arguments import default_timeout, deterministic_setting
from ..errors import ConnectError
from ..worker import KVWorker
from ._launch import Launched, check_master, launched
from ._meeting import Place, Scheduler, meet

if TYPE_CHECKING:
    from ._optimizer import DistributedOptimizer

_log = logging.getLogger("fptps")


class Process:
    """This process's place in its cluster, from init() to shutdown()."""

    def __init__(self, worker: KVWorker, process: Launched | None, scheduler: Scheduler | None = None) -> None:
        self.worker = worker
        worker._collectives.alone = True
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
        found = self.worker._collectives.allgather((socket.gethostname(), *own))
        here = [rank for rank, (host, *_) in found.items() if host == found[self.worker.rank][0]]
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
                if self._scheduler is not None:
                    self._scheduler.end()


def _start(deterministic: bool | None) -> Process:
    process = launched(os.environ)
    if process is not None and not os.environ.get("DMLC_PS_ROOT_URI"):
        started = _meet(process, deterministic)
    else:
        started = Process(KVWorker(deterministic=deterministic), process)
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


def _meet(process: Launched, deterministic: bool | None) -> Process:
    """The cluster of a launcher's processes, which meet in torch.distributed's store."""
    settings = deterministic_setting(deterministic)
    check_master(os.environ, process)
    seconds, name = default_timeout(), f"the cluster of {process.by}"
    try:
        store, _, _ = next(rendezvous("env://", process.rank, process.size, timeout=timedelta(seconds=seconds)))
    except RuntimeError as error:
        raise ConnectError(
            f"{name}: rank {process.rank} did not meet the {process.size - 1} others in {seconds:g} s at MASTER_ADDR="
            f"{os.environ['MASTER_ADDR']}, MASTER_PORT={os.environ['MASTER_PORT']}. Does every process call "
            f"fptps.torch.init()? torch.distributed says: {error}"
        ) from error
    _stores[:] = [store]  # rank 0's may be the one that all others ask
    own, ranks = PrefixStore(f"fptps {next(_meetings)}/", store), list(range(process.size))
    worker, scheduler = meet(Place(own, process.rank, ranks, seconds, name), settings)
    return Process(worker, process, scheduler)


_stores: list[Any] = []
_meetings = itertools.count()  # a program may call init() again after shutdown()
_current: list[Process] = []  # empty: not initialised


def init(*, deterministic: bool | None = None) -> None:
    """Joins the cluster, or begins to run alone. Further calls do nothing.

    - Under `fptps run`, or wherever DMLC_PS_ROOT_URI and its companions name a cluster: that one.
    - Under torchrun: a cluster of its processes without servers, whose scheduler rank 0 runs; all learn its address
      through torch.distributed's store. The same under mpirun and srun if MASTER_ADDR and MASTER_PORT are set.
    - Else alone: every sum is this process's own contribution, and a warning says so.

    The log ("fptps", INFO) has one line with what was found. Raises ConfigError where a launcher's processes cannot
    meet, and what KVWorker() raises. The cluster is left by shutdown(), or when the program ends.

    deterministic: as for KVWorker: with True all sums have the same bits in every run. ValueError if an earlier call
        has decided otherwise.
    """
    if not is_initialized():
        _current[:] = [_start(deterministic)]
    elif deterministic not in (None, current().worker.deterministic):
        raise ValueError(
            f"deterministic={deterministic!r}, but fptps.torch is initialised already, with deterministic="
            f"{current().worker.deterministic}: give it in the first call of init()"
        )


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
    """This worker's number, from 0. It stays when others die. RuntimeError before init()."""
    return current().worker.rank


def size() -> int:
    """The number of workers that take part: some may have died, and others come (FPTPS_RECOVERY=1). RuntimeError
    before init()."""
    return current().worker.num_workers


def workers() -> tuple[int, ...]:
    """Their ranks, in order. RuntimeError before init()."""
    return current().worker.workers


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
