"""Tickets: the handles of operations that are under way."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ._autograd import modified
from .errors import ClosedError, FptpsError, from_core, timed_out

if TYPE_CHECKING:
    from ._keys import Key
    from ._session import Session

Result = TypeVar("Result")

_log = logging.getLogger("fptps")

UNDER_WAY, SUCCEEDED, BROKEN, UNKNOWN = range(4)
"""The states of an operation, as the core's wait() returns them. UNKNOWN: it was never begun, or its end was noted."""

STATE_BITS: Final = 8
"""The bits of wait()'s result that are the state; of an operation that SUCCEEDED the others are its epoch."""

SLICE_S = 0.1
"""The longest single call into the core. Python sees a Ctrl-C only between two calls."""


class Ticket(Generic[Result]):
    """The handle of a push, pull, push_pull or skip. The worker's methods make tickets.

    A ticket is done when its operation has ended: then no part of fptps refers to the arrays any more. Until then
    the arrays must not be written to (nor the one that is received into be read); they are kept alive even where the
    ticket itself is dropped. `await ticket` does what wait() does, for asyncio. Any thread may use a ticket.
    """

    __slots__ = (
        "__weakref__", "_callbacks", "_ends", "_epoch", "_key", "_result", "_session", "_waiters", "arrays", "number"
    )  # fmt: skip

    def __init__(self, session: Session, number: int, arrays: object, result: Result, key: Key | None = None) -> None:
        self.number: Final = number
        """The core's name of the operation."""
        self.arrays: object = arrays
        """What is kept alive until the operation has ended, which clears it."""
        self._session = session
        self._result = result
        self._key = key  # of the tensor that the operation is about
        self._epoch = 0  # how many workers had died or come before the round of the operation; see KVWorker.workers
        self._ends: list[BaseException | None] = []  # how it ended: the first that was noted counts; empty: not yet
        self._waiters: list[Callable[[], object]] = []  # called once when it has ended, on any thread
        self._callbacks: list[Callable[[Ticket[Result]], object]] = []

    def done(self) -> bool:
        """Whether the operation has ended, well or not. Never waits."""
        return self.poll(0.0)

    def result(self, timeout: float | None = None) -> Result:
        """Waits until the operation has ended and gives its result.

        The result of a pull or push_pull is the array that was received into; of a push or skip it is None.
        timeout is in seconds: None means the worker's own timeout, math.inf no bound. TimeoutError names the
        missing nodes; the ticket stays valid and may be waited for again. Any other error is the operation's own, among
        them NodeLostError, MismatchError and ClosedError. Asking again for a ticket that is done gives the same.
        """
        self._wait(self._session.seconds(timeout))
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits as result() does, and gives the error that result() would raise; None if the operation went well."""
        self._wait(self._session.seconds(timeout))
        return self._error()

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks of the workers that took part in the round: all, unless some have died (FPTPS_RECOVERY=1).

        Every worker gets the same for the same round: so all can change their data, or a rate, in the same step.
        ValueError as long as the ticket is not done. Of an operation that failed it means nothing.
        """
        if not self._ends:
            raise ValueError("the ticket is not done: wait for it first")
        return self._session.workers(self._epoch)

    def add_done_callback(self, function: Callable[[Ticket[Result]], object]) -> None:
        """Calls function(ticket) when the operation has ended: at once, on this thread, if it has already.

        Otherwise it runs on a thread of fptps's own, which serves all callbacks of the worker one after the other: a
        long one delays the others. An exception of the function is logged ("fptps", ERROR), and goes no further.
        """
        self._callbacks.append(function)
        if not self.poll(0.0):
            thread = self._session.callback_thread()
            self._waiters.append(functools.partial(thread.call, self._call_back))
        if self.poll(0.0):  # it may have ended before the waiter was registered
            self._call_back()

    def _call_back(self) -> None:
        """Calls the functions, each once, whichever threads come here."""
        while self._callbacks:
            try:
                function = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                function(self)
            except Exception:
                _log.exception("a done callback of a ticket failed")

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait_async().__await__()

    def __repr__(self) -> str:
        state = "under way" if not self._ends else "failed" if self._ends[0] else "done"
        return f"<fptps.Ticket {state}>"

    def _wait(self, seconds: float) -> None:
        if self._ends:
            return
        start = time.monotonic()
        end = start + seconds
        try:
            left = seconds
            while not self.poll(min(left, SLICE_S)):
                left = end - time.monotonic()
                if left <= 0:
                    raise self._timed_out(seconds)
        finally:
            self._session.waited += time.monotonic() - start

    def poll(self, seconds: float) -> bool:
        """Whether the ticket is done; waits for it at most so long."""
        if not self._ends:
            core = self._session.core
            try:
                handle = self._session.usable()
                # Rounded up: a wait of the last 0.3 ms must not spin.
                result = core.wait(handle, self.number, math.ceil(seconds * 1000))
                state = result & (1 << STATE_BITS) - 1
                if state == SUCCEEDED:
                    self._epoch = result >> STATE_BITS
                    self.settle(None)
                elif state == BROKEN:
                    self.settle(from_core(core.failure(handle, self.number)))
            except ClosedError:
                if not self._ends:  # or else a close has ended it meanwhile
                    raise
        return bool(self._ends)

    @property
    def ended(self) -> bool:
        """Whether the end of the operation was noted."""
        return bool(self._ends)

    def settle(self, failure: BaseException | None) -> None:
        """Records the end of the operation and releases the arrays. Any thread may call it, any number of times."""
        modified(self._result)
        self._ends.append(failure)
        self.release()

    def release(self) -> None:
        """Releases the arrays and wakes the waiters, after the end was recorded; called again if it was interrupted."""
        self.arrays = None
        while self._waiters:
            with contextlib.suppress(RuntimeError, IndexError):  # its loop is closed, or another thread has popped it
                self._waiters.pop()()
        self._session.live.pop(self.number, None)

    def _outcome(self) -> Result:
        failure = self._error()
        if failure is not None:
            raise failure
        return self._result

    def _error(self) -> BaseException | None:
        """A new exception each time: one that is raised twice gathers the tracebacks of both."""
        failure = copy.copy(self._ends[0])
        self.name_key(failure)
        return self._session.named(failure) if isinstance(failure, FptpsError) else failure

    def name_key(self, error: BaseException | None) -> None:
        """Gives an error the key of the operation, if it has none: the core's NodeLostError has none, and is every
        operation's."""
        if isinstance(error, FptpsError) and error.key is None:
            error.key = self._key

    def _timed_out(self, seconds: float) -> FptpsError:
        return self._session.named(timed_out(seconds, self._session.core.explain(self._session.usable(), self.number)))

    async def _wait_async(self) -> Result:
        if not self.poll(0.0):
            seconds = self._session.seconds(None)
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            with self._session.watched(loop):
                self._waiters.append(functools.partial(loop.call_soon_threadsafe, _finish, future))
                if not self.poll(0.0):  # it may have ended before the waiter was registered
                    bound = None if math.isinf(seconds) else seconds
                    await asyncio.wait({future}, timeout=bound)
                if not self.poll(0.0):
                    raise self._timed_out(seconds)
        return self._outcome()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def wait(tickets: Iterable[Ticket[Result]], timeout: float | None = None) -> list[Result]:
    """Waits for all tickets and gives their results, in the order of the tickets.

    Raises the error of the first that failed, so that none passes unseen (unlike concurrent.futures.wait); the others
    go on and may be waited for. timeout bounds the whole wait, in seconds, as for Ticket.result().
    """
    tickets = list(tickets)
    left = _countdown(tickets, timeout)
    return [ticket.result(left()) for ticket in tickets]


def as_completed(tickets: Iterable[Ticket[Result]], timeout: float | None = None) -> Iterator[Ticket[Result]]:
    """Gives each ticket when its operation has ended, well or not; the first to end first.

    timeout bounds the time from the call to the last ticket, in seconds, as for Ticket.result(). TimeoutError names
    what is missing of one that has not ended.
    """
    left = _countdown(tickets := list(dict.fromkeys(tickets)), timeout)
    return _as_completed(tickets, left)


def _as_completed(tickets: list[Ticket[Result]], left: Callable[[], float]) -> Iterator[Ticket[Result]]:
    ended: queue.SimpleQueue[Ticket[Result]] = queue.SimpleQueue()
    missing = dict.fromkeys(tickets)
    for ticket in tickets:
        ticket.add_done_callback(ended.put)
    while missing:
        try:
            ticket = ended.get(timeout=min(left(), threading.TIMEOUT_MAX))
        except queue.Empty:
            next(iter(missing)).result(0)  # which raises TimeoutError, unless it ends just now
            continue
        del missing[ticket]
        yield ticket


def _countdown(tickets: list[Ticket[Result]], timeout: float | None) -> Callable[[], float]:
    """A function that gives how many seconds are left of a timeout that begins now."""
    seconds = max((ticket._session.seconds(timeout) for ticket in tickets), default=0.0)
    end = time.monotonic() + seconds
    return lambda: max(0.0, end - time.monotonic())
