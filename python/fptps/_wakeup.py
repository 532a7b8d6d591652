"""Wakes event loops when a ticket ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from .errors import ClosedError


class Wakeup:
    """Makes the event loops that await tickets of one worker call reap() whenever a ticket of it ends.

    The core writes to one eventfd, whose count only one reader gets. So whichever loop reads it reaps all that has
    ended, and each ticket wakes those that await it, on their own loops. Each loop is told through a descriptor of
    its own, which is there as long as something awaits there.
    """

    def __init__(self, event: Callable[[], int], reap: Callable[[], None]) -> None:
        self._event = event
        self.reap = reap
        self._watching: dict[asyncio.AbstractEventLoop, tuple[int, int]] = {}  # descriptor, how many await

    @contextlib.contextmanager
    def watched(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Within this context the loop is woken; called on the loop's thread."""
        descriptor, count = self._watching.get(loop, (-1, 0))
        if count == 0:
            descriptor = self._event()
            loop.add_reader(descriptor, self._readable, descriptor)
        self._watching[loop] = (descriptor, count + 1)
        try:
            yield
        finally:
            descriptor, count = self._watching[loop]
            if count > 1:
                self._watching[loop] = (descriptor, count - 1)
            else:
                del self._watching[loop]
                loop.remove_reader(descriptor)
                os.close(descriptor)

    def _readable(self, descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):  # another loop was quicker
            os.read(descriptor, 8)
        self.reap()


class CallbackThread:
    """The thread that runs the done callbacks of one worker's tickets: an event loop that awaits as any other does."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fptps callbacks", daemon=True)

    def call(self, function: Callable[[], object]) -> None:
        """Has the thread call a function soon. RuntimeError after its end."""
        if threading.get_ident() == self._thread.ident:  # the loop is awake, and has to be told by no system call
            self._loop.call_soon(function)
        else:
            self._loop.call_soon_threadsafe(function)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the callbacks that are due."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        with contextlib.closing(self._loop), contextlib.suppress(ClosedError), self._wakeup.watched(self._loop):
            self._wakeup.reap()  # for tickets that ended before the loop was watched
            self._loop.run_forever()
