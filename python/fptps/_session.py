"""Session: one open node of this process, the operations under way on it, and its end."""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import itertools
import json
import logging
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from . import _report
from ._arguments import seconds_of
from ._autograd import modified
from ._keys import Key
from ._timeline import signals
from ._wakeup import CallbackThread, Wakeup
from .errors import ClosedError, FptpsError, TimeoutError
from .ticket import UNKNOWN, Ticket

LEAVE_S: Final = 5.0
"""How long leaving at once may take. It waits for no other node, only for this process's own threads."""

Named = Callable[[FptpsError], FptpsError]

_log = logging.getLogger("fptps")
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_dropped: list[str] = []  # the names of nodes of clusters that were dropped while they were open
_stranded: list[object] = []  # arrays that the core may still use, with no way to learn when it no longer does


class Session:
    """A node, as KVWorker, checkpoints and fptps.ps use it: submit(), tickets, close, fork, and the program's exit.

    Nothing here takes a lock: a signal handler of the program may run between any two steps of a call on the main
    thread, and may use the same node or raise. So each step leaves a state from which every thread can go on. The
    handle of a node, and the number of an operation, are chosen before the call into the core; the core remembers how
    an operation ended until that was recorded here, and recording it twice does no harm.
    """

    def __init__(self, timeout: float, closed: str, advice: str, lonely: bool = False) -> None:
        """timeout: seconds, of waits without their own. closed: what ClosedError says after the close. advice: how a
        program should end the session. lonely: no other node sees how it ends."""
        self.timeout = timeout
        self.name = "a node"
        self.advice = advice
        self.lonely: Final = lonely
        self.handle = 0  # the core's: 0 before the start, and after the close
        self.entry = 0  # the handle, while new operations are taken
        self.named: Named = lambda error: error
        """An error of the core, in the words of the program."""
        self.live: dict[int, Ticket[Any]] = {}  # the operations that have not ended; their arrays are kept alive
        self.ranks = 1  # how many workers the cluster had at its start
        self.watchers: list[Callable[[tuple[int, ...]], object]] = []  # to be called when workers have died or come
        self._present: dict[int, tuple[int, ...]] = {}  # the ranks of the workers, by epoch; -1: as last known here
        self._announced: tuple[int, ...] = ()  # of which of them the watchers know
        self.waited = 0.0
        self._leaving = False
        self._refusal = closed
        self._closed = closed
        self._numbers = itertools.count(1)
        self._wakeup = Wakeup(self.notify_fd, self.reap)
        self._callbacks: list[CallbackThread] = []  # the first is the one that runs
        _sessions.add(self)

    @functools.cached_property
    def core(self) -> Any:
        """The core's functions. Not imported before: a process that forks before its first node can use fptps in the
        child."""
        from . import _core

        return _core

    def start(self, begin: Callable[..., None], *arguments: object) -> None:
        """Opens the node: begin is open() or open_ps() of the core. Whatever it raises, leave() is due."""
        signals.listen(lambda: list(_sessions))
        self.handle = self.entry = self.core.new_handle()
        begin(self.handle, *arguments)

    def submit(
        self, call: Callable[..., Any], arrays: object, *arguments: object, result: Any = None, key: Key | None = None
    ) -> Ticket[Any]:
        """Begins an operation of the core, and keeps arrays alive until it has ended. key: the tensor that it is about,
        for its errors."""
        ticket = Ticket(self, next(self._numbers), arrays, result, key)
        self.begin_all([ticket], call, ticket.number, *arguments)
        modified(result)
        return ticket

    def tickets(self, kept: Sequence[tuple[object, Key | None]]) -> list[Ticket[Any]]:
        """Tickets for begin_all(), each with the arrays that it keeps alive and its key."""
        return [Ticket(self, next(self._numbers), arrays, None, key) for arrays, key in kept]

    def begin_all(self, tickets: list[Ticket[Any]], call: Callable[..., Any], *arguments: object) -> None:
        """Begins operations by one call of the core: all, or after an error none."""
        try:
            handle = self.entered()
            self._reap(handle)
            self._begin(handle, tickets, call, *arguments)
        except FptpsError as error:
            if len(tickets) == 1:
                tickets[0].name_key(error)
            raise self.named(error) from None

    def submit_all(
        self, call: Callable[..., Any], words: list[tuple[int, ...]], kept: list[tuple[object, Any, Key]]
    ) -> list[Ticket[Any]]:
        """Begins operations by one call, each with the words that describe it; kept: arrays, result and key of each."""
        tickets = [Ticket(self, next(self._numbers), *of_one) for of_one in kept]
        list_ = array.array("q", itertools.chain.from_iterable((t.number, *w) for t, w in zip(tickets, words)))
        if tickets:
            self.begin_all(tickets, call, list_.buffer_info()[0], len(tickets))
        for _, result, _ in kept:
            modified(result)
        return tickets

    def _begin(self, handle: int, tickets: list[Ticket[Any]], call: Callable[..., Any], *arguments: object) -> None:
        try:  # before the loop: Python runs signal handlers at the end of each step of it
            for ticket in tickets:
                self.live[ticket.number] = ticket
            call(handle, *arguments)
        except BaseException:
            # The core refused them, or a signal handler raised just before, in or after the call.
            for ticket in tickets:
                if self._unknown(handle, ticket):
                    self.live.pop(ticket.number, None)
            raise

    def _unknown(self, handle: int, ticket: Ticket[Any]) -> bool:
        """Whether the core knows nothing of an operation."""
        try:
            return bool(self.core.wait(handle, ticket.number, 0) == UNKNOWN)
        except ClosedError:
            return True

    def reap(self) -> None:
        """Settles every ticket that has ended, so that its arrays are released even if no thread waits for it."""
        if self.handle:
            with contextlib.suppress(ClosedError):  # another thread closes the node meanwhile
                self._reap(self.handle)

    def _reap(self, handle: int) -> None:
        if self.watchers:
            with contextlib.suppress(RuntimeError):  # the node closes meanwhile
                self.callback_thread().call(self._announce)
        number = self.core.ended(handle, 0)
        while number:
            ticket = self.live.get(number)
            if ticket is not None and ticket.poll(0.0):
                ticket.release()
            number = self.core.ended(handle, number)

    def ranks_so_far(self) -> int:
        """How many ranks there have been, those of dead workers included."""
        return int(json.loads(self.core.info(self.usable()))["ranks"])

    def workers(self, epoch: int = -1) -> tuple[int, ...]:
        """The ranks of the workers, now or in an epoch: each death or admission of one begins another."""
        if self.handle and (epoch < 0 or epoch not in self._present):
            with contextlib.suppress(ClosedError):
                self._present[epoch] = tuple(json.loads(self.core.present(self.handle, epoch)) or ())
        return self._present.get(epoch) or self._present.get(-1) or tuple(range(self.ranks))

    def watch(self, function: Callable[[tuple[int, ...]], object]) -> None:
        """Calls function(workers) on the thread of callbacks whenever workers have died or come."""
        self._announced = self.workers()
        self.watchers.append(function)
        self.callback_thread()

    def _announce(self) -> None:
        """Calls the watchers; on the thread of callbacks."""
        workers = self.workers()
        if workers == self._announced:
            return
        self._announced = workers
        for function in self.watchers:
            try:
                function(workers)
            except Exception:
                _log.exception("a function of KVWorker.on_membership() failed")

    def usable(self) -> int:
        """The handle for tickets; ClosedError after the close and in a forked child."""
        return self.handle or self._refuse()

    def entered(self, key: Key | None = None) -> int:
        """The handle for new operations; ClosedError from the close on, about a key."""
        return self.entry or self._refuse(key)

    def _refuse(self, key: Key | None = None) -> NoReturn:
        raise ClosedError(self._refusal, key=key)

    def seconds(self, timeout: float | None) -> float:
        """A timeout argument in seconds."""
        return self.timeout if timeout is None else seconds_of(timeout)

    def notify_fd(self) -> int:
        """A new descriptor of the eventfd that becomes readable when a ticket ends; the caller closes it."""
        return int(self.core.notify_fd(self.usable()))

    def watched(self, loop: Any) -> Any:
        """See Wakeup.watched."""
        return self._wakeup.watched(loop)

    def callback_thread(self) -> CallbackThread:
        """The thread on which done callbacks run."""
        mine = None if self._callbacks else CallbackThread(self._wakeup)
        self._callbacks.extend([mine] if mine else [])
        if self._callbacks[0] is mine:
            mine.start()
        return self._callbacks[0]

    def leave(
        self, orderly: bool, timeout: float | None = None, drain: bool = True, why: str = "", finish: bool = False
    ) -> None:
        """Closes the node. If orderly, it first waits for the other nodes, at most timeout seconds, else it sends them
        the reason why. With drain it first refuses new operations, and if it is orderly, or with finish, waits for
        those under way.

        The first call does it; further ones do nothing. When it returns, the core refers to no array any more.
        """
        handle, self._leaving = 0 if self._leaving else self.handle, True
        if handle:
            try:
                if drain:
                    self.entry = 0
                if finish:
                    self._drain(handle, time.monotonic() + self.seconds(timeout))
                if orderly:
                    end = time.monotonic() + self.seconds(timeout)
                    if drain:
                        self._drain(handle, end)
                    goodbye = Ticket(self, next(self._numbers), None, None)
                    self._begin(handle, [goodbye], self.core.close, goodbye.number, 1, "")
                    goodbye.result(max(0.0, end - time.monotonic()))
            finally:
                self.drop(why)
            if (orderly or finish) and not self.lonely:
                _report.left()

    def _drain(self, handle: int, end: float) -> None:
        """Waits for the operations under way. Their errors go to those who wait for their tickets."""
        for ticket in list(self.live.values()):
            if not self._unknown(handle, ticket):  # its call was interrupted, or is just being made
                try:
                    ticket.exception(max(0.0, end - time.monotonic()))
                except TimeoutError:
                    return  # the goodbye raises the same

    def drop(self, why: str = "") -> None:
        """Leaves at once, from any state, and sends the others the reason why."""
        handle, self.entry = self.handle, 0
        if not handle:
            return
        goodbye = Ticket(self, next(self._numbers), None, None)
        ended = False
        try:
            self._begin(handle, [goodbye], self.core.close, goodbye.number, 0, why)
            end = time.monotonic() + LEAVE_S
            while not ended and time.monotonic() < end:
                ended = goodbye.poll(0.1)
        except ClosedError:  # the core has no such node: its start was refused
            ended = True
        for ticket in list(self.live.values()):
            if not ended:
                _stranded.append(ticket.arrays)
            elif goodbye.done():
                ticket.poll(0.0)
        for ticket in list(self.live.values()):
            ticket.settle(ClosedError(self._closed))
        self.handle = 0
        for callbacks in self._callbacks:
            callbacks.stop()
        if ended:
            self.core.free(handle)

    def dropped(self) -> None:
        """Leaves at once, since the owner is being garbage-collected."""
        if not self.lonely:
            _dropped.append(self.name)
        self.drop()

    def abandon(self, reason: str) -> None:
        """In a forked child: the node belongs to the parent, and nothing here may ask the core."""
        if self.handle:
            self.entry = self.handle = 0
            self._refusal = reason


def left_open() -> bool:
    """Whether a node of this process is open in a cluster, or was when it was dropped."""
    return bool(_dropped) or any(session.entry and not session.lonely for session in list(_sessions))


def _leave_all() -> None:
    """At the end of the interpreter, before the arrays go: the core must not touch them then."""
    for session in list(_sessions):
        if session.handle:
            lost = "" if session.lonely else ": the other nodes see it as lost"
            _log.warning("%s was not closed%s. %s", session.name, lost, session.advice)
            session.drop()


def _abandon_all() -> None:
    for session in list(_sessions):
        session.abandon(
            f"{session.name} belongs to the process that this one was forked from: make one of its own in a process "
            "started by subprocess, or by multiprocessing with the method 'spawn'"
        )


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_abandon_all)
