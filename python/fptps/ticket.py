"""Tickets: the promises of operations that are under way."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import CLASSES, BusyError, TimeoutError

if TYPE_CHECKING:
    from .worker import KVWorker

Result = TypeVar("Result")

OF_CORE = tuple(CLASSES.values())
"""What the core's calls raise. A signal handler of the program may raise anything else in the middle of one."""

SLICE_S = 0.1
"""The longest single call into the core. Python sees a Ctrl-C only between two calls."""


class Ticket(Generic[Result]):
    """The promise of a push, pull, push_pull or skip. The worker's methods make tickets.

    A ticket is done when its operation has ended: then no part of fptps refers to the arrays any more. Until then
    the arrays must not be written to (nor the one that is received into be read); they are kept alive even where the
    ticket itself is dropped. `await ticket` does what wait() does, for asyncio. Any thread may use a ticket.
    """

    __slots__ = (
        "__weakref__",
        "_arrays",
        "_asking",
        "_failure",
        "_number",
        "_reaped",
        "_result",
        "_waiters",
        "_worker",
    )

    def __init__(self, worker: KVWorker, arrays: object, result: Result) -> None:
        self._worker = worker
        self._arrays: object = arrays  # kept alive until the operation has ended, which clears it
        self._result = result
        self._number = 0  # the core's name of it; 0 as soon as it is done
        self._failure: BaseException | None = None
        self._asking = threading.Lock()  # held around a call to the core, which tells the end of a ticket only once
        self._reaped = False  # the core has told that it ended, but not how
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def done(self) -> bool:
        """Whether the operation has ended, well or not. Never waits."""
        return self._poll(0.0)

    def result(self) -> Result:
        """What wait() returns, of a ticket that is done. Never waits: BusyError if it is not done."""
        if not self._poll(0.0):
            raise BusyError(f"result() does not wait: call wait() first. The ticket is not done: {self._missing()}")
        return self._outcome()

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until the operation has ended and gives its result.

        The result of a pull or push_pull is the array that was received into; of a push or skip it is None.
        timeout is in seconds: None means the worker's own timeout, math.inf no bound. TimeoutError names what is
        missing; the ticket stays valid and may be waited for again. Any other error is the operation's own, among
        them NodeLostError, MismatchError and ClosedError. Waiting again for a ticket that is done gives the same.
        """
        seconds = self._worker._seconds(timeout)
        if self._number:
            self._wait(seconds)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait_async().__await__()

    def __repr__(self) -> str:
        state = "under way" if self._number else "done" if self._failure is None else "failed"
        return f"<fptps.Ticket {state}>"

    def _wait(self, seconds: float) -> None:
        start = time.monotonic()
        end = start + seconds
        try:
            left = seconds
            while not self._poll(min(left, SLICE_S)):
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"waited {round(seconds, 2):g} s: {self._missing()}")
        finally:
            self._worker._add_wait(time.monotonic() - start)

    def _poll(self, seconds: float) -> bool:
        """Whether the ticket is done; waits for it at most so long."""
        if self._number:
            handle = self._worker._usable()
            if self._asking.acquire(blocking=seconds > 0, timeout=seconds if seconds > 0 else -1):
                try:
                    self._ask(handle, seconds)
                finally:
                    self._asking.release()
            # Who learnt meanwhile that it had ended may have found the lock taken: then the asking is ours.
            if self._reaped:
                self._reaped = False
                return self._poll(0.0)
        return not self._number

    def _reap(self) -> None:
        """The core has told that the operation has ended, but not how. Never waits."""
        self._reaped = True
        self._poll(0.0)

    def _ask(self, handle: int, seconds: float) -> None:
        if not self._number:
            return
        try:
            # Rounded up: a wait of the last 0.3 ms must not spin.
            ended = self._worker._core.wait(handle, self._number, math.ceil(seconds * 1000))
        except OF_CORE as error:
            self._settle(error)
        else:
            if ended:
                self._settle(None)

    def _settle(self, failure: BaseException | None) -> None:
        """Notes the end of the operation and lets go of the arrays."""
        self._failure = failure
        number, self._number = self._number, 0
        self._arrays = None
        self._worker._forget(number)
        self._wake()

    def _outcome(self) -> Result:
        if self._failure is not None:
            # A new exception each time: one that is raised twice gathers the tracebacks of both.
            raise type(self._failure)(*self._failure.args)
        return self._result

    def _missing(self) -> str:
        return self._worker._explain(self._number)

    def _wake(self) -> None:
        while self._waiters:
            loop, future = self._waiters.pop()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(_finish, future)

    async def _wait_async(self) -> Result:
        if self._number and not self._poll(0.0):
            seconds = self._worker._seconds(None)
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            with self._worker._watched(loop):
                self._waiters.append((loop, future))
                if not self._poll(0.0):  # it may have ended before there was anybody to wake
                    bound = None if math.isinf(seconds) else seconds
                    await asyncio.wait({future}, timeout=bound)
                if self._number and not self._poll(0.0):
                    raise TimeoutError(f"waited {seconds:g} s: {self._missing()}")
        return self._outcome()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
