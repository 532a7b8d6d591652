"""An operation of a process group: what it moves, and how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import torch

from ...errors import TimeoutError
from ...ticket import Ticket


class Verb(Enum):
    """What all members of a group do with their arrays, each at its own place in the sequence of transfers."""

    SUM = "sum"
    MEAN = "mean"
    SEND = "send"
    """Contributes; all others receive or ignore."""
    RECEIVE = "receive"
    IGNORE = "ignore"


class Transfer(NamedTuple):
    """One step of an operation. All members have transfers of as many elements of the same dtype, in the same order."""

    verb: Verb
    array: torch.Tensor
    """In the CPU's memory, with one dimension and without gaps. It is not touched by IGNORE."""


class Operation:
    """An operation that is under way, or waits for its turn. Any thread may wait for it.

    plan gives the transfers, when it is the operation's turn. finish is called once after the last transfer, before
    anyone learns of the end. What either raises is the operation's error.
    """

    def __init__(
        self,
        name: str,
        plan: Callable[[], Sequence[Transfer]],
        finish: Callable[[], object] | None = None,
        after: Operation | None = None,
    ) -> None:
        self.name = name
        self.plan = plan
        self.after = after
        """An operation whose result plan needs."""
        self.ranges: list[tuple[int, int]] = []
        """Addresses of the memory that is in use while the operation is under way."""
        self.error: BaseException | None = None
        self._finish = finish
        self._tickets: list[Ticket[Any]] = []
        self._begun = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._callbacks: list[Callable[[], object]] = []

    def begin(self, tickets: list[Ticket[Any]], copies: list[Callable[[], object]]) -> None:
        """Notes the transfers that are under way. copies: what is to be done after them, before finish."""
        finish = self._finish

        def finish_all() -> None:
            for copy in copies:
                copy()
            if finish is not None:
                finish()

        self._finish = finish_all
        self._tickets = tickets
        self._begun.set()
        if self._callbacks:
            self._watch()

    def fail(self, error: BaseException) -> None:
        """Ends the operation without transfers."""
        self.error, self._finish, self._tickets = error, None, []
        self._begun.set()
        self._end()

    @property
    def ended(self) -> bool:
        """Whether the operation has ended, well or not. Never waits."""
        if not self._ended and self._begun.is_set() and all(ticket.done() for ticket in self._tickets):
            self._end()
        return self._ended

    def wait(self, seconds: float) -> None:
        """Waits for the end, and raises the operation's error; TimeoutError after so many seconds."""
        end = time.monotonic() + seconds
        if not self._ended:
            if not self._begun.wait(min(seconds, threading.TIMEOUT_MAX)):
                raise TimeoutError(f"waited {seconds:g} s for the operations before it to begin")
            for ticket in self._tickets:
                ticket.exception(max(0.0, end - time.monotonic()))
            self._end()
        if self.error is not None:
            raise self.error

    def add_done_callback(self, function: Callable[[], object]) -> None:
        """Calls function() at the end, on any thread: at once if that was before."""
        with self._ending:
            ended = self._ended
            if not ended:
                self._callbacks.append(function)
                watch = self._begun.is_set() and len(self._callbacks) == 1
        if ended:
            function()
        elif watch:
            self._watch()

    def _watch(self) -> None:
        """Has the end noticed though no thread may wait for it."""
        for ticket in self._tickets:
            ticket.add_done_callback(self._one_ended)
        if not self._tickets:
            self._end()

    def _one_ended(self, _: Ticket[Any]) -> None:
        if all(ticket.ended for ticket in self._tickets):
            self._end()

    def _end(self) -> None:
        """Finishes, once; other threads that come here wait until that is done."""
        with self._ending:
            if self._ended:
                return
            self.error = self.error or self._outcome()
            self._ended = True
            callbacks, self._callbacks = self._callbacks, []
            self._finish = None
        for callback in callbacks:
            callback()

    def _outcome(self) -> BaseException | None:
        errors = (ticket.exception() for ticket in self._tickets)
        error = next((error for error in errors if error is not None), None)
        if error is None and self._finish is not None:
            try:
                self._finish()
            except Exception as failure:
                error = failure
        return error
