"""The place of a program where workers that come later are admitted."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from ._session import Session
from .errors import NodeLostError
from .ticket import Ticket

PASSES, UNDECIDED = range(2)
"""Results of core.come(); any other: all workers meet here now."""


class Admission:
    """admit() of one worker."""

    def __init__(self, session: Session, rank: int, newcomer: bool) -> None:
        self.newcomer = newcomer
        self._session = session
        self._rank = rank
        self._waits: Ticket[Any] | None = None  # which a call has not seen end, after a TimeoutError

    def admit(self, state: Callable[[], Any]) -> tuple[bool, Any]:
        """Whether workers may have been admitted; and what the program of another worker has handed over, if this one was.

        After a TimeoutError the next call goes on waiting.
        """
        if self._waits is None and not self._due():
            return False, None
        if self._waits is None:
            pickled = b"" if self.newcomer else pickle.dumps(state(), protocol=pickle.HIGHEST_PROTOCOL)
            memory = np.frombuffer(pickled, np.uint8)
            core = self._session.core
            self._waits = self._session.submit(core.arrive, None, memory.ctypes.data, memory.nbytes)
        self._wait()
        if not self.newcomer:
            return True, None
        received = self._fetch()
        self.newcomer = False
        return True, received

    def _wait(self) -> None:
        if self._waits is not None:
            self._waits.result()
            self._waits = None

    def _due(self) -> bool:
        """Whether all workers meet here."""
        results: list[int] = []
        core = self._session.core
        while True:
            (ticket,) = self._session.tickets([(None, None)])
            self._session.begin_all([ticket], lambda *of: results.append(core.come(*of)), ticket.number)
            if results[-1] != UNDECIDED:
                self._session.live.pop(ticket.number, None)
                return results[-1] != PASSES
            ticket.result()

    def _fetch(self) -> Any:
        """What another worker has handed over. Of those that were admitted together none has it."""
        session, failure = self._session, None
        for rank in session.workers():
            if rank == self._rank:
                continue
            try:
                session.submit(session.core.fetch, None, rank).result()
            except (NodeLostError, ValueError) as error:
                failure = error
                continue
            pickled = np.empty(session.core.state_size(session.usable()), np.uint8)
            session.core.take_state(session.usable(), pickled.ctypes.data, pickled.nbytes)
            return pickle.loads(pickled)
        raise failure or NodeLostError("no other worker is left that has the state of the training")
