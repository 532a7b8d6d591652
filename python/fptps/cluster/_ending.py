"""The signals that end the processes of a cluster, and their times. Pure: the time is an argument."""

from __future__ import annotations

import signal
from typing import Final

KILL_S: Final = 30.0
"""How long processes may take to end after a signal, before SIGKILL, unless a user says otherwise: enough for a
checkpoint of some GB. It costs no time where they end sooner."""


class Ending:
    """Plans the signals for processes that have not ended. kill: the seconds from the first signal to SIGKILL."""

    def __init__(self, kill: float = KILL_S) -> None:
        self._kill = kill
        self._plan: list[tuple[float, int]] = []  # (time, signal), in this order
        self._begun = False
        self._stopped = False

    def expect(self, now: float, seconds: float) -> None:
        """Gives all processes that time to end by themselves: one has failed, or the work is done."""
        end = now + seconds
        if not self._begun and (not self._plan or end < self._plan[0][0]):
            self._plan = [(end, signal.SIGTERM), (end + self._kill, signal.SIGKILL)]

    def stop(self, now: float, number: int) -> None:
        """Ends all processes by this signal; a second call by SIGKILL."""
        self._plan = [(now, signal.SIGKILL)] if self._stopped else [(now, number), (now + self._kill, signal.SIGKILL)]
        self._begun = self._stopped = True

    @property
    def planned(self) -> bool:
        """Whether signals are to be sent, or have been."""
        return bool(self._plan)

    def due(self, now: float) -> int | None:
        """Returns the signal to send now, if any."""
        number = None
        while self._plan and self._plan[0][0] <= now:
            number = self._plan.pop(0)[1]
            self._begun = True
        if number is not None and not self._plan:
            self._plan = [(now + self._kill, signal.SIGKILL)]  # until none is left
        return number
