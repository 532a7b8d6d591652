"""How long training takes to be at its pace again after each change of the links. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from .director import Event, Span

NEAR: Final = 1.1
"""An iteration is at its pace if it takes at most this multiple of the settled time."""
INSIST: Final = 3
"""The pace is found with the first of so many such iterations in a row, as far as there are so many."""


class Phase(NamedTuple):
    """The iterations from one event, or the begin, until the next. An iteration belongs to the last event in it."""

    event: Event | None
    seconds: list[float]

    @property
    def settled_s(self) -> float:
        """The median of the later half."""
        return statistics.median(self.seconds[len(self.seconds) // 2 :])

    @property
    def found_after(self) -> int:
        """How many iterations it took until the pace was found: 0 if the first one is at it."""
        return first_within(self.seconds, NEAR * self.settled_s)


def first_within(times: Sequence[float], limit: float) -> int:
    """The first of INSIST iterations in a row, as far as there are so many, that take at most so long; their number if
    there is none."""
    near = [each <= limit for each in times]
    return next((i for i in range(len(near)) if all(near[i : i + INSIST])), len(near))


def phases(iterations: Sequence[Span], events: Sequence[Event]) -> list[Phase]:
    """The iterations of one worker by the event before them; those without any are left out."""
    found = []
    ordered: list[Event | None] = [None, *sorted(events)]
    for event, following in zip(ordered, [*ordered[1:], None]):
        begin = float("-inf") if event is None else event.begin
        end = float("inf") if following is None else following.begin
        seconds = [each.end - each.begin for each in iterations if begin <= each.end < end]
        if seconds:
            found.append(Phase(event, seconds))
    return found


def table(found: Sequence[Phase]) -> str:
    """A line for each phase."""
    lines = [f"{'s':>7} {'iterations':>10} {'first ms':>9} {'settled':>9} {'slowest':>9} {'found after':>11}  from"]
    for phase in found:
        begin = "" if phase.event is None else f"{phase.event.begin:.3f}"
        text = "the begin" if phase.event is None else phase.event.text
        first, settled, slowest = (1e3 * s for s in (phase.seconds[0], phase.settled_s, max(phase.seconds)))
        line = f"{begin:>7} {len(phase.seconds):>10} {first:>9.1f} {settled:>9.1f} {slowest:>9.1f} "
        lines.append(f"{line}{phase.found_after:>11}  {text}")
    return "\n".join(lines)
