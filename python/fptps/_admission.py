"""The place of a program where workers that come later are admitted."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ._session import Session
from .errors import NodeLostError
from .ticket import Ticket

PASSES, UNDECIDED = range(2)
"""Results of core.come(); any other: all workers meet here now."""


class Admitted(NamedTuple):
    """What KVWorker.admit() returns where workers were admitted."""

    workers: tuple[int, ...]
    """The ranks of the workers that take part from now on, in order: the same on all of them."""
    state: Any
    """On a worker that was admitted, what the program of another one has handed over; on the others None."""


class Admission:
    """admit() of one worker."""

    def __init__(self, session: Session, rank: int, newcomer: bool) -> None:
        self.newcomer = newcomer
        self._session = session
        self._rank = rank
        self._times = 0  # admissions so far
        self._waits: Ticket[Any] | None = None  # which a call has not seen end, after a TimeoutError

    def admit(self, state: Callable[[], Any]) -> Admitted | None:
        """See KVWorker.admit()."""
        if self._waits is None and not self._due():
            return None
        if self._waits is None:
            pickled = b"" if self.newcomer else pickle.dumps(state(), protocol=pickle.HIGHEST_PROTOCOL)
            memory = np.frombuffer(pickled, np.uint8)
            core = self._session.core
            self._waits = self._session.submit(core.arrive, None, memory.ctypes.data, memory.nbytes)
        self._waits.result()
        self._waits = None
        received = self._fetch() if self.newcomer else None
        self.newcomer = False
        info = self.info()
        if info["admissions"] == self._times:  # the newcomers have died, or left
            return None
        self._times = info["admissions"]
        return Admitted(tuple(info["admitted"]), received)

    def info(self) -> dict[str, Any]:
        """The core's description of this worker."""
        info: dict[str, Any] = json.loads(self._session.core.info(self._session.usable()))
        return info

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
        session = self._session
        failure: Exception | None = None
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
            return pickle.loads(pickled.data)
        raise NodeLostError("no other worker is left that has the state of the training") from failure
