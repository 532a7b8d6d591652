"""KVWorker: what a training program sees of the cluster."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import operator
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Literal, NoReturn

from . import consistency as consistencies
from ._arguments import default_timeout, key_of, keys_text, priority_of, settings_of
from ._store import Store
from ._wakeup import Wakeup
from .arrays import locate, maker
from .errors import ClosedError, NodeLostError
from .optim import Optimizer, rule
from .ticket import OF_CORE, Ticket

Array = Any
"""A numpy array, a PyTorch CPU tensor, or an object with the DLPack or the buffer protocol; see fptps.arrays."""

OPERATIONS: Final = {"sum": 0, "mean": 1}
LEAVE_S: Final = 5.0
"""How long leaving at once may take. It waits for nobody, only for this process's own threads."""
CLOSED: Final = "this KVWorker is closed: make another one"

_log = logging.getLogger("fptps")
_workers: weakref.WeakSet[KVWorker] = weakref.WeakSet()
_dropped: list[str] = []  # the workers of clusters that were dropped while they were open
_stranded: list[object] = []  # arrays that the core may still use though nobody can learn when it no longer does


class KVWorker(Store):
    """A worker of a cluster: pushes tensors, and pulls their sums over all workers.

    A key, a whole number of 0 or more, names a tensor of a fixed size and dtype. init() declares it; then every
    worker pushes it equally often, or skips it, and its n-th push on all workers is summed together. A larger
    priority is more urgent on the network. All methods may be called from any thread.

    scheduler: "host:port". Without it and without a cluster in the environment (DMLC_PS_ROOT_URI and others) the worker
        is alone: it needs no other process, and every sum is its own push. The arguments go before the environment.
    num_workers, num_servers: the numbers of the whole cluster, as DMLC_NUM_WORKER and DMLC_NUM_SERVER.
    timeout: seconds that joining may take, and the bound of every wait that has none of its own; math.inf: no bound.
        None means FPTPS_TIMEOUT in the environment, else 60.0.

    Raises ConfigError for settings that are missing or make no sense, and ConnectError if it cannot join.

    Use it in a `with` block, or call close(): who ends without is lost to the other nodes. Leaving the block by an
    exception does not wait for them.
    """

    def __init__(
        self,
        scheduler: str | None = None,
        num_workers: int | None = None,
        num_servers: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self._entry = 0  # the core's handle for new operations: 0 before the start, and from the close on
        self._handle = 0  # the core's handle for tickets: 0 before the start, and after the close
        self._refusal = CLOSED
        self._lock = threading.Lock()  # one submission at a time: no ticket ends before it is in _live
        self._live: dict[int, Ticket[Any]] = {}  # every ticket that is not done, whose arrays have to live on
        self._makers: dict[int, Callable[[], Any]] = {}  # by key: a new array like the one of init()
        self._tables: dict[int, Any] = {}
        self._waited = 0.0
        self._timeout = default_timeout() if timeout is None else self._seconds(timeout)
        settings = settings_of(scheduler, num_workers, num_servers, self._timeout)
        self._alone = not settings.get("DMLC_PS_ROOT_URI")

        # Not at the top: a process that forks before its first KVWorker can use fptps in the child.
        from . import _core

        self._core = _core
        self._wakeup = Wakeup(lambda: _core.notify_fd(self._usable()), self._reap)
        self._entry = self._handle = _core.open(json.dumps(settings))
        _workers.add(self)
        try:
            self._submit(_core.joined, None).wait(self._timeout + LEAVE_S)
            info = json.loads(_core.info(self._handle))
        except BaseException:
            self._leave(orderly=False)
            raise
        self._rank = int(info["rank"])
        self._num_workers = int(info["num_workers"])
        self._num_servers = int(info["num_servers"])
        self._waited = 0.0

    @property
    def rank(self) -> int:
        """This worker's number, from 0 to num_workers - 1."""
        return self._rank

    @property
    def num_workers(self) -> int:
        """The number of workers in the cluster."""
        return self._num_workers

    @property
    def num_servers(self) -> int:
        """The number of servers in the cluster."""
        return self._num_servers

    def set_tensor_count(self, n: int) -> None:
        """Says how many tensors this worker pushes (or skips) in each step of its training loop."""
        self._core.set_tensor_count(self._usable(), operator.index(n))

    def init(self, key: int, array: Array, consistency: str = "sync") -> None:
        """Declares a tensor; its value is rank 0's array, which pull() then gives at every worker.

        Waits for all workers to call it, at most the worker's timeout. The array (any shape, any dtype that can be
        summed) is read on rank 0 and written nowhere; its shape and kind are those of the arrays that pull() makes.
        MismatchError if the workers' arrays differ in size or dtype, or if the workers name different consistencies.
        Units of timedelta64 are not compared.

        consistency: "sync": a round is the sum of all workers' pushes. "async": each push is added to the tensor's
        value (or applied by the optimiser) when it arrives, and answered at once with the value as it is then.
        "bounded:N": as async, but a worker that is more than N rounds ahead of the slowest waits for it. All workers
        have to name the same.
        """
        key = key_of(key)
        policy = consistencies.number(consistency)
        dtype, address, nbytes, keep = locate(array, write=False)
        make = maker(array)
        self._submit(self._core.init, (array, keep), key, dtype, policy, address, nbytes).wait()
        self._makers[key] = make

    def push(self, key: int, array: Array, priority: int = 0) -> Ticket[None]:
        """Contributes an array, of the size and dtype of init(), to the next sum of the tensor.

        The ticket is done when the sum is here, for pull(). Do not write to the array until then. Raises KeyError
        for a key without init(), ValueError or TypeError for an array that differs from init()'s, and BusyError if a
        part of the array is in flight.
        """
        dtype, address, nbytes, keep = locate(array, write=False)
        return self._submit(
            self._core.push, (array, keep), key_of(key), dtype, address, nbytes, 0, priority_of(priority)
        )

    def pull(self, key: int, out: Array | None = None) -> Ticket[Any]:
        """Brings the sum of this worker's last push of the tensor; after init() and before a push, rank 0's value.

        The ticket's result is out, or without it a new array of the shape, dtype and kind (numpy or PyTorch) of
        init(). out may be the array of that push, and in flight: the sum then overwrites it. Pulling again gives the
        same sum again. Raises KeyError for a key without init(), ValueError for an out that is read-only or not
        contiguous and after a push_pull() (its sum is not kept), and BusyError.
        """
        key = key_of(key)
        if out is None:
            out = self._make(key)
        dtype, address, nbytes, keep = locate(out, write=True)
        return self._submit(self._core.pull, (out, keep), key, dtype, address, nbytes, result=out)

    def push_pull(
        self,
        key: int,
        array: Array,
        out: Array | None = None,
        op: Literal["sum", "mean"] = "sum",
        priority: int = 0,
    ) -> Ticket[Any]:
        """Pushes an array and receives the sum, straight into out: the fastest way.

        The ticket's result is out, or without it a new array of the shape, dtype and kind of array. out may be array
        itself. op "mean" divides the sum by the number of workers (those that skip count) and takes floats and
        complex numbers only. Every worker has to give the same op. The sum is not kept for pull().
        """
        key = key_of(key)
        number = OPERATIONS.get(op)
        if number is None:
            raise ValueError(f"op={op!r}: 'sum' or 'mean' is expected")
        if out is None:
            out = maker(array)()
        dtype, address, nbytes, keep = locate(array, write=out is array)
        target = address
        if out is not array:
            out_dtype, target, out_nbytes, out_keep = locate(out, write=True)
            keep = (keep, out_keep)
            if out_dtype != dtype:
                raise TypeError("array and out differ in dtype")
            if out_nbytes != nbytes:
                raise ValueError(f"array has {nbytes} bytes, and out {out_nbytes}: they have to be of the same size")
        return self._submit(
            self._core.push_pull,
            (array, out, keep),
            key,
            dtype,
            address,
            nbytes,
            target,
            number,
            priority_of(priority),
            result=out,
        )

    def skip(self, key: int) -> Ticket[None]:
        """Takes the place of a push where there is nothing to contribute this time: it counts as a push of zeros.

        As after a push, pull() gives the sum of the others' pushes, and the ticket is done when it is here.
        """
        return self._submit(self._core.skip, None, key_of(key))

    def set_optimizer(self, optimizer: Optimizer, keys: Iterable[int] | None = None) -> None:
        """Has the aggregators keep the weights: from now on a push is a gradient, and what comes back are the weights.

        optimizer: one of fptps.optim: SGD, Adam, AdamW or Adagrad. keys: those it is for; None means all that are
        initialised by now and were not pushed before. Rank 0's call takes effect, and returns when every aggregator
        has the optimiser; on other ranks it only checks the arguments, so that all may call it. A second call
        replaces the hyper-parameters; the optimiser's state stays if it is of the same kind.

        The other workers need not wait where the consistency is "sync", since no round is complete without rank 0's
        push. Where it is "async" or "bounded:N", they have to call barrier() after it, before their first push.

        float16 and bfloat16 tensors are kept in float32 and sent rounded. Raises TypeError for other tensors than
        floats, ValueError without a key, for hyper-parameters that make no sense and for a key that was pushed without
        an optimiser, KeyError for a key without init(), and BusyError while a push of a key is in flight.
        """
        self._submit(self._core.set_optimizer, None, keys_text(keys), rule(optimizer)).wait()

    def set_learning_rate(self, lr: float, keys: Iterable[int] | None = None) -> None:
        """Changes the learning rate, from rank 0's next push on: that push and all that are applied after it.

        keys: those it is for; None means all that have an optimiser. Rank 0's call takes effect, on other ranks it only
        checks the arguments. The rate is rounded to float32. Raises ValueError for a rate that is negative or not
        finite and for a key without an optimiser.
        """
        if not 0 <= lr < math.inf:
            raise ValueError(f"lr={lr!r}: a learning rate is finite and 0 or more")
        self._core.set_learning_rate(self._usable(), keys_text(keys), float(lr))

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all workers have called it. timeout in seconds, as with Ticket.wait()."""
        seconds = self._seconds(timeout)
        self._submit(self._core.barrier, None).wait(seconds)

    def stats(self) -> dict[str, Any]:
        """Counters since the start: bytes_pushed, bytes_pulled, packets_sent and others of the core, and wait_s.

        wait_s is the time in seconds that threads of this process have waited in wait(), init() and barrier().
        """
        return {**json.loads(self._core.stats(self._usable())), "wait_s": self._waited}

    def close(self) -> None:
        """Leaves the cluster in good order: with all nodes, when what is under way has ended. Idempotent.

        Waits at most the worker's timeout, then leaves at once with a TimeoutError. NodeLostError if another node
        is lost meanwhile. After it every use raises ClosedError.
        """
        self._leave(orderly=True)

    def __enter__(self) -> KVWorker:
        if not self._entry:
            self._refuse()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Who leaves because another node was lost leaves nobody waiting.
        if self._entry and not self._alone and kind is not None and not issubclass(kind, NodeLostError):
            _log.warning(
                "worker %d left its `with` block by %r, without waiting for the other nodes: they see it as lost",
                self._rank,
                error,
            )
        self._leave(orderly=kind is None)

    def __del__(self) -> None:
        if getattr(self, "_entry", 0):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            if not self._alone:
                _dropped.append(repr(self))
            self._leave(orderly=False)

    def __repr__(self) -> str:
        if not self._entry:
            return "<fptps.KVWorker closed>"
        return f"<fptps.KVWorker {getattr(self, '_rank', '?')} of {getattr(self, '_num_workers', '?')}>"

    def _submit(
        self, call: Callable[..., int], arrays: object, *arguments: int | str, result: Any = None
    ) -> Ticket[Any]:
        """Starts an operation of the core."""
        ticket = Ticket(self, arrays, result)
        # Looked at before the lock: in a forked child another thread may hold it for ever.
        if not self._entry:
            self._refuse()
        with self._lock:
            handle = self._entry or self._refuse()
            self._reap_locked(handle)
            try:
                ticket._number = call(handle, *arguments)
                self._live[ticket._number] = ticket
            except OF_CORE:
                raise  # refused: nothing is under way
            except BaseException:
                # A signal handler came between. The core may have the arrays, so they must live on.
                _stranded.append(arrays)
                raise
        return ticket

    def _reap(self) -> None:
        """Settles every ticket that has ended, so that its arrays go free though nobody waits for it."""
        with self._lock:
            if self._handle:
                self._reap_locked(self._handle)

    def _reap_locked(self, handle: int) -> None:
        number = self._core.reap(handle)
        while number:
            ticket = self._live.get(number)
            if ticket is not None:
                ticket._reap()
            number = self._core.reap(handle)

    def _forget(self, number: int) -> None:
        self._live.pop(number, None)

    def _explain(self, number: int) -> str:
        return (number and self._core.explain(self._usable(), number)) or "its end came just now"

    def _watched(self, loop: Any) -> contextlib.AbstractContextManager[None]:
        return self._wakeup.watched(loop)

    def _usable(self) -> int:
        """The handle for tickets; ClosedError after the close and in a forked child."""
        return self._handle or self._refuse()

    def _refuse(self) -> NoReturn:
        raise ClosedError(self._refusal)

    def _make(self, key: int) -> Any:
        make = self._makers.get(key)
        if make is None:
            if not self._entry:
                self._refuse()
            raise KeyError(f"key {key} was never initialised: call init({key}, array) on every worker first")
        return make()

    def _seconds(self, timeout: float | None) -> float:
        """A timeout argument in seconds."""
        if timeout is None:
            return self._timeout
        kind: type[Exception] = ValueError
        try:
            if timeout >= 0:  # False for NaN
                return float(timeout)
        except TypeError:
            kind = TypeError
        raise kind(f"timeout={timeout!r}: a number of seconds, 0 or more, or math.inf is expected")

    def _add_wait(self, seconds: float) -> None:
        self._waited += seconds

    def _leave(self, orderly: bool) -> None:
        """Closes, and waits for the others first if orderly. The first call does it; further ones do nothing."""
        with self._lock:
            handle, self._entry = self._entry, 0
        if not handle:
            return
        try:
            if orderly:
                self._finish(handle, time.monotonic() + self._timeout)
        finally:
            self._drop(handle)

    def _finish(self, handle: int, end: float) -> None:
        """Waits for what is under way, and for the other nodes to come to the same point."""
        for ticket in list(self._live.values()):
            with contextlib.suppress(*OF_CORE):  # how it ended is told to those who wait for it
                ticket.wait(max(0.0, end - time.monotonic()))
        goodbye = Ticket(self, None, None)
        goodbye._number = self._core.close(handle, 1)
        goodbye._wait(max(0.0, end - time.monotonic()))
        goodbye._outcome()

    def _drop(self, handle: int) -> None:
        """Leaves at once. When it returns, the core refers to no array any more."""
        ended = False
        with contextlib.suppress(*OF_CORE):
            number = self._core.close(handle, 0)
            end = time.monotonic() + LEAVE_S
            while not ended and time.monotonic() < end:
                ended = bool(self._core.wait(handle, number, 100))
        for ticket in list(self._live.values()):
            if not ended:
                _stranded.append(ticket._arrays)
            with contextlib.suppress(ClosedError):
                ticket._poll(0.0)
        self._handle = 0
        for ticket in list(self._live.values()):
            ticket._settle(ClosedError(CLOSED))
        if ended:
            self._core.free(handle)


def left_open() -> bool:
    """Whether a worker of this process is open in a cluster, or was when it was dropped."""
    return bool(_dropped) or any(worker._entry and not worker._alone for worker in list(_workers))


def _leave_all() -> None:
    """At the end of the interpreter, before the arrays go: the core must not touch them then."""
    for worker in list(_workers):
        if worker._entry:
            lost = "" if worker._alone else ": the other nodes see it as lost"
            _log.warning("%r was not closed%s. Use `with fptps.KVWorker()`, or close()", worker, lost)
            worker._leave(orderly=False)


def _abandon() -> None:
    """In a forked child: the worker belongs to the parent, and nothing here may ask the core."""
    for worker in list(_workers):
        if worker._handle:
            worker._entry = worker._handle = 0
            worker._refusal = (
                "this KVWorker belongs to the process that this one was forked from: make one of its own in a process "
                "started by subprocess, or by multiprocessing with the method 'spawn'"
            )


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_abandon)
