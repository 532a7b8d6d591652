"""Wakes event loops when a ticket ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator


class Wakeup:
    """Has the event loops that await tickets of one worker call reap() whenever a ticket of it ends.

    The core writes to one eventfd, whose count only one reader gets. So whichever loop reads it reaps all that has
    ended, and each ticket wakes those that await it, on their own loops. Each loop is told through a descriptor of
    its own, which is there as long as something awaits there.
    """

    def __init__(self, event: Callable[[], int], reap: Callable[[], None]) -> None:
        self._event = event
        self._reap = reap
        self._watching: dict[asyncio.AbstractEventLoop, tuple[int, int]] = {}  # descriptor, how many await

    @contextlib.contextmanager
    def watched(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Within this context the loop is told; called on the loop's thread."""
        descriptor, count = self._watching.get(loop, (-1, 0))
        if count == 0:
            descriptor = os.dup(self._event())
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
        self._reap()
