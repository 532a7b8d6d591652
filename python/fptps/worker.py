"""KVWorker: a training program's view of the cluster."""

from __future__ import annotations

import json
import logging
import operator
import os
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from . import _logs, _report, _stacks, checkpoint, stats
from ._admission import Admission, Admitted
from ._arguments import default_timeout, seconds_of, settings_of
from ._collectives import Arrays, Collectives
from ._session import LEAVE_S, Named, Session
from ._tensors import Tensors
from ._timeline.recording import Recording
from .errors import NodeLostError, TimeoutError
from .namespace import Namespace
from .stats import Stats

CLOSED: Final = "this KVWorker is closed: make another one"

_log = logging.getLogger("fptps")


class KVWorker(Namespace):
    """A worker of a cluster: pushes tensors, and pulls their sums over all workers.

    A key, a whole number or a name, stands for a tensor of a fixed shape and dtype. init() declares it; then every
    worker pushes it equally often, or skips it, and its n-th push on all workers is summed together. A larger
    priority is more urgent on the network. All methods may be called from any thread.

    scheduler: "host:port". Without it and without a cluster in the environment (DMLC_PS_ROOT_URI and others) the worker
        is alone: it needs no other process, and every sum is its own push. Arguments override the environment.
    num_workers, num_servers: the numbers of the whole cluster, as DMLC_NUM_WORKER and DMLC_NUM_SERVER.
    timeout: seconds that joining may take, and the bound of every wait that has none of its own; math.inf: no bound.
        None means FPTPS_TIMEOUT in the environment, else 60.0.
    deterministic: True adds contributions in the order of ranks, so that every sum has the same bits in every run. All
        workers pass the same (else MismatchError from init()). None means FPTPS_DETERMINISTIC in the environment, else
        False.

    Raises ConfigError for settings that are missing or make no sense, and ConnectError if it cannot join.

    Use it in a `with` block, or call close(): a worker that ends without closing is lost to the other nodes. Leaving
    the block by an exception does not wait for them.
    """

    def __init__(
        self,
        scheduler: str | None = None,
        num_workers: int | None = None,
        num_servers: int | None = None,
        timeout: float | None = None,
        deterministic: bool | None = None,
    ) -> None:
        seconds = default_timeout() if timeout is None else seconds_of(timeout)
        settings = settings_of(scheduler, num_workers, num_servers, seconds, deterministic)
        self._join(settings, seconds, None)

    def _join(self, settings: dict[str, str], seconds: float, named: Named | None) -> None:
        lonely = not settings.get("DMLC_PS_ROOT_URI")
        self._session = session = Session(seconds, CLOSED, "Use `with fptps.KVWorker()`, or close()", lonely)
        session.name, session.named = repr(self), named or session.named
        super().__init__(session, Tensors(), (), None)
        try:
            session.start(session.core.open, json.dumps(settings))
            if not lonely:
                _stacks.answer(session.core, session.handle)
            session.submit(session.core.joined, None).result(seconds + LEAVE_S)
            info = json.loads(session.core.info(session.usable()))
        except BaseException:
            session.drop()
            raise
        self._rank = int(info["rank"])
        _logs.identify(session, "worker", self._rank)
        session.ranks = int(info["num_workers"])
        self._num_servers = int(info["num_servers"])
        self._deterministic = bool(info["deterministic"])
        self._recovers = bool(info["recovers"])
        hidden = Namespace(session, Tensors(), ("",), None)  # no name of a user's is empty
        self._collectives = Collectives(hidden, self._rank, session.ranks)
        self._collectives.grow(session.ranks_so_far())
        self._admission = Admission(session, self._rank, bool(info["newcomer"]))
        self._collectives.begun = not self._admission.newcomer
        if not lonely and not self.newcomer:
            _report.takes_part(self._rank)
        session.waited = 0.0
        session.name = repr(self)

    @classmethod
    def _of(cls, settings: dict[str, str], seconds: float, named: Named) -> KVWorker:
        """A worker with settings named as in the environment, which is not read. named: see Session.named."""
        kv = cls.__new__(cls)
        kv._join(settings, seconds, named)
        return kv

    @property
    def rank(self) -> int:
        """This worker's number, from 0. It stays when others die, and no worker that comes later gets one again."""
        return self._rank

    @property
    def num_workers(self) -> int:
        """The number of workers that take part; with FPTPS_RECOVERY=1 some may have died, and others come."""
        return len(self.workers)

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks of the workers that take part, in order: also of those that were admitted later.

        Other workers may hear of a death some steps earlier or later. Where all have to act in the same step, use
        Ticket.workers.
        """
        return self._session.workers()

    def on_membership(self, function: Callable[[tuple[int, ...]], object]) -> None:
        """Calls function(workers), with the ranks of those that take part, whenever workers have died or were admitted.

        It runs on the thread of done callbacks (see Ticket.add_done_callback). An exception of it is logged.
        """
        self._session.watch(function)

    @property
    def newcomer(self) -> bool:
        """Whether this worker came when the others had begun, and has not been admitted yet: see admit()."""
        return self._admission.newcomer

    def admit(self, state: Callable[[], Any]) -> Admitted | None:
        """The place of the program where workers that come later (FPTPS_RECOVERY=1) are admitted.

        All workers call it in the same place, again and again, for instance at the beginning of each step or epoch.
        While nobody waits to be admitted, it returns None at once. Else it calls state(), which returns what newcomers
        need to go on from here, such as the weights and the number of the step, as any object that pickle takes. Then
        it waits until all workers have come to the same call, and returns an Admitted: the workers that take part from
        now on, among whom to divide the data. This worker must have no operation under way then: BusyError names the
        key.

        A newcomer declares its tensors as all do, and then calls admit(): it waits until the others admit it, and
        returns an Admitted with a worker's state(). (As always with pickle, it can run code of the worker that sends
        it.) Before, it can neither push nor meet others: such calls raise ValueError.

        TimeoutError if the others do not come to the same call in time; the next call then goes on waiting.
        """
        newcomer = self.newcomer
        admitted = self._admission.admit(state)
        if newcomer:
            _report.takes_part(self._rank)
        if admitted is not None:
            self._collectives.begun = True
            self._collectives.grow(self._session.ranks_so_far())
        return admitted

    def leave(self) -> None:
        """Leaves a training that goes on without this worker (FPTPS_RECOVERY=1), after the operations under way.

        The others do not wait: rounds of theirs that have begun end without this worker. Idempotent; after it every
        use raises ClosedError. ValueError in a cluster without recovery, which cannot go on.
        """
        if not self._recovers:
            raise ValueError("leave(): without FPTPS_RECOVERY=1 the others cannot go on: use close() on all workers")
        self._session.leave(orderly=False, finish=True, why="it left in good order")

    @property
    def num_servers(self) -> int:
        """The number of servers in the cluster."""
        return self._num_servers

    @property
    def deterministic(self) -> bool:
        """Whether contributions are added in the order of ranks."""
        return self._deterministic

    def set_tensor_count(self, n: int) -> None:
        """Says how many tensors this worker pushes (or skips) in each step of its training loop."""
        self._session.core.set_tensor_count(self._session.usable(), operator.index(n))

    def broadcast(self, arrays: Arrays, root: int = 0) -> None:
        """Writes the arrays of worker root into those of every worker.

        arrays: a list or a dict of arrays (numpy, PyTorch and others, as for push()), on all workers in the same shapes
        and dtypes. They need no init(), and any dtype of push()'s is fine. Memory: some MB, whatever their size.

        All workers call it, in the same order as their other collective calls (broadcast_object(), allgather_object(),
        save() and load()). MismatchError on all workers if they call something else or with another root, and if shapes
        or dtypes differ; an array that cannot be used is an error on all, too. TimeoutError names those that have not
        come: the same call, with the same arrays, then goes on waiting. BusyError if another such call has not ended.
        NodeLostError if worker root dies (FPTPS_RECOVERY=1); the arrays of the others may have been written to in part.
        """
        self._collectives.broadcast(arrays, root)

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Returns worker root's obj on every worker; the objects of the others are ignored.

        obj: any object that pickle takes. As always with pickle, it can run code of the worker that sends it. Raises
        the errors of broadcast(). If it cannot be pickled, all workers raise: root pickle's own error, the others one
        of the same class, or RemoteError.
        """
        return self._collectives.broadcast_object(obj, root)

    def allgather_object(self, obj: Any) -> list[Any]:
        """Returns the objects of all workers, in the order of ranks, on every worker; those of dead ones are left out.

        Pickle and errors: see broadcast_object().
        """
        return list(self._collectives.allgather(obj).values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the aggregators' state to a safetensors file: weights, the optimisers' state, clocks.

        A tensor with consistency "sync" and without an optimiser has no state between two rounds: the file only names
        it. All workers call it, between two rounds; it begins when all have come, and returns on all when
        the file is there. Rank 0 writes it: the path is on its machine. The old file stays until the new one is whole
        and on the disk. Memory: some MB, whatever the size, and twice the size of a tensor whose axes are in another
        order than C's. A long save logs its progress ("fptps", INFO).

        Raises, on every worker, BusyError while a push of rank 0 is in flight, ValueError where there is nothing to
        save, TypeError for quantised tensors, and OSError. TimeoutError if not all have come, and on the others if rank
        0 makes no progress for the worker's timeout; the same call then goes on waiting.
        """
        self._collectives.save(os.fspath(path), lambda progress: checkpoint.save(self, path, progress))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restores a file of save(): the aggregators' state, optimisers included, and the weights for every pull().

        All workers call it, between two rounds, and with the same tensors initialised as at the save; the numbers of
        workers and servers may differ. It begins when all have come. Rank 0 reads the file; the others wait as long as
        it makes progress. clock() goes on from the saved one, in the order of the workers' ranks; in a cluster of
        another number of workers each of them goes on from the slowest.

        Raises, on every worker, CheckpointError for a file that is cut, foreign or does not fit, OSError for one that
        cannot be read, and BusyError while a push is in flight: nothing is changed then, on no node. TimeoutError as
        save().
        """
        self._collectives.load(os.fspath(path), lambda progress: checkpoint.load(self, path, progress), self._refresh)

    def _refresh(self) -> None:
        for key in self._tensors.known:
            checkpoint.refresh(self, key)

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all workers have called it. timeout in seconds, as with Ticket.result().

        After a TimeoutError this worker has not come to the barrier, and may call it again.
        """
        session = self._session
        seconds = session.seconds(timeout)
        ticket = session.submit(session.core.barrier, None)
        try:
            ticket.result(seconds)
        except BaseException as error:  # Ctrl-C, too
            if ticket.ended:
                raise
            session.core.withdraw(session.usable(), ticket.number)
            # The scheduler decides: where all had come first, the barrier is passed.
            if not isinstance(error, TimeoutError) or ticket.exception(LEAVE_S) is not None:
                raise

    def stats(self) -> Stats:
        """The counters of this process since it joined. The difference of two calls gives rates."""
        return stats.read(self._session)

    def timeline(self, path: str | os.PathLike[str], sampling: str = "1/64") -> Recording:
        """Records what happens to this worker's packets and operations from now on, until stop() of the result or the
        end of its `with` block, and writes it to a file for `fptps timeline` and https://ui.perfetto.dev.

        sampling: "1/64": 1 packet in 64, "1": every packet. The files of several workers: `fptps timeline FILE... -o
        ALL`; a whole cluster from the start: `fptps run --timeline FILE`. BusyError if this worker is traced already.
        """
        return Recording(self._session, path, sampling)

    def close(self) -> None:
        """Leaves the cluster in good order, together with all nodes, after the operations under way. Idempotent.

        Waits at most the worker's timeout, then leaves at once with a TimeoutError. NodeLostError if another node
        is lost meanwhile. After it every use raises ClosedError.
        """
        self._session.leave(orderly=True)

    def __enter__(self) -> KVWorker:
        self._session.entered()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After a NodeLostError no other node waits for this one.
        lonely = self._session.lonely or not self._session.entry
        if not lonely and kind is not None and not issubclass(kind, NodeLostError):
            _log.warning(
                "worker %d left its `with` block by %r, without waiting for the other nodes: they see it as lost",
                self._rank,
                error,
            )
        why = "" if error is None else f"it left by {type(error).__name__}: {error}"
        self._session.leave(orderly=kind is None, why=why)

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and session.handle:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            session.dropped()

    def __repr__(self) -> str:
        if not self._session.entry and hasattr(self, "_rank"):
            return "<fptps.KVWorker closed>"
        rank = getattr(self, "_rank", None)
        return "<fptps.KVWorker ? of ?>" if rank is None else f"<fptps.KVWorker {rank} of {self._session.ranks}>"
