"""The processes that take the places of dead ones, and when they start. Pure: the time is an argument."""

from __future__ import annotations

from typing import Final, NamedTuple

from ._process import Process

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0
"""The pauses before a restart: each is twice the one before, so that a program that fails at once is not started in a
tight loop. A cluster that ends as a whole has ended before the first pause has."""
STEADY_S: Final = 60.0
"""A process that has lived so long has not failed at once: the pauses of its role begin anew."""


class _Planned(NamedTuple):
    time: float
    dead: Process


class Restarts:
    """Plans at most number restarts."""

    def __init__(self, number: int) -> None:
        self.left = number
        self._pauses: dict[str, float] = {}  # the last one, by role
        self._planned: list[_Planned] = []

    def plan(self, now: float, dead: Process, lived: float) -> bool:
        """Plans a restart for a process that died after so many seconds; False if none is left."""
        if not self.left:
            return False
        self.left -= 1
        last = 0.0 if lived >= STEADY_S else self._pauses.get(dead.role, 0.0)
        pause = self._pauses[dead.role] = min(max(2 * last, FIRST_S), LONGEST_S)
        self._planned.append(_Planned(now + pause, dead))
        return True

    def due(self, now: float) -> list[Process]:
        """The dead processes whose places are to be taken now."""
        due = [planned for planned in self._planned if planned.time <= now]
        self._planned = [planned for planned in self._planned if planned.time > now]
        return [planned.dead for planned in due]

    def planned(self, role: str) -> bool:
        """Whether a process of that role is still to start."""
        return any(planned.dead.role == role for planned in self._planned)

    def cancel(self) -> None:
        """Drops all plans: the run ends."""
        self._planned.clear()
