"""What links and threads carried while workers waited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from .part import Kind
from .trace import Node

BUSY: Final = 0.7
"""A thread that is busy for so much of the time limits what it moves."""
HALF_BUSY: Final = 0.4
"""It may do so from here on: packets also wait for other nodes in between."""


class Spans:
    """Spans of time; those that overlap count once."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        """spans: from and until, in ns."""
        joined: list[list[int]] = []
        for begin, end in sorted(spans):
            if joined and begin <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([begin, end])
        self._bounds = [bound for span in joined for bound in span] or [0]
        lengths = [length for begin, end in joined for length in (0, end - begin)] or [0]
        self._covered = np.cumsum(lengths)

    @property
    def total(self) -> int:
        """How long all spans are together, in ns."""
        return int(self._covered[-1])

    def within(self, begin: int, end: int) -> float:
        """How long they are between two times."""
        before, until = np.interp((begin, end), self._bounds, self._covered)
        return float(until - before)


@dataclass(frozen=True)
class Load:
    """A node's load while workers waited. The busier direction of its link counts."""

    rate: float
    """Mbit/s on average."""
    most: float
    """Mbit/s that the link carries where it has to: a sample in twenty has more."""
    loop: float
    """The part of the time in which the busiest thread of the data plane ran, or waited for a processor."""

    @property
    def busy(self) -> bool:
        """Whether the thread limits what the node moves, and not its link."""
        return self.loop >= BUSY or (self.loop >= HALF_BUSY and self.loop > self.use)

    @property
    def use(self) -> float:
        """The part of what the link has carried at most."""
        return min(1.0, self.rate / self.most) if self.most else 0.0


def load(node: Node, spans: Spans) -> Load:
    """The load of a node in some spans of time."""
    total = spans.total or 1
    directions = []
    for kind in (Kind.SENT, Kind.RECEIVED):
        rates = _by_time(node, kind)
        size = sum(rate * spans.within(begin, end) for begin, end, rate in rates)
        most = float(np.percentile([rate for _, _, rate in rates], 95)) if rates else 0.0
        directions.append((size, most))
    size, most = max(directions)
    busy = sum(rate * spans.within(begin, end) for begin, end, rate in _by_time(node, Kind.LOOP))
    return Load(size * 8000 / total, most * 8000, min(1.0, busy * 1000 / total))


def _by_time(node: Node, kind: Kind) -> list[tuple[int, int, float]]:
    """Samples of all peers together: from, until, and what was counted in a ns."""
    samples: dict[tuple[int, int], float] = {}
    for e in node.of(kind).tolist():
        begin, end = e[0], e[0] + 1000 * max(1, e[3])
        samples[begin, end] = samples.get((begin, end), 0.0) + e[4] / (end - begin)
    return [(begin, end, rate) for (begin, end), rate in sorted(samples.items())]
