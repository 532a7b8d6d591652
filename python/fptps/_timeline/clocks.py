"""Brings the clocks of hosts together.

Processes of one host share its monotonic clock. Clocks of different hosts have been compared by heartbeats, as NTP
does: the scheduler read its clock at some moment between a node's question and the answer, so that half of the round
trip bounds the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .part import Part


@dataclass(frozen=True)
class Clock:
    """How to read a host's clock as the scheduler's. times and offsets: ns, of the exchanges, in order."""

    times: tuple[int, ...]
    offsets: tuple[int, ...]
    uncertainty: int
    """ns by which a time may be wrong, either way; 0 on the scheduler's own host."""

    def read(self, times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Times of the host, in ns, as the scheduler's. Clocks drift: between exchanges the offset changes evenly."""
        read: np.ndarray[Any, Any] = times + np.rint(np.interp(times, self.times, self.offsets)).astype(np.int64)
        return read


SAME = Clock((0,), (0,), 0)


def align(parts: Sequence[Part]) -> dict[str, Clock | None]:
    """The clock of each host, by its id; None: it could not be compared with the scheduler's.

    All nodes of a host have compared the same clock: their exchanges count together. Where all nodes are on one host
    there is nothing to compare.
    """
    hosts = {part.head["host_id"] for part in parts}
    schedulers = [part.head["host_id"] for part in parts if part.head["role"] == "scheduler"]
    clocks: dict[str, Clock | None] = {}
    for host in hosts:
        if host in schedulers or len(hosts) == 1:
            clocks[host] = SAME
            continue
        exchanges = [tuple(x) for part in parts if part.head["host_id"] == host for x in part.head["clock"]]
        clocks[host] = _clock(exchanges)
    return clocks


WINDOW_NS = 10_000_000_000
"""Of the exchanges of so long only the fastest counts, which says most."""


def _clock(exchanges: list[tuple[int, int, int]]) -> Clock | None:
    """What exchanges (time, offset, uncertainty) say of a clock."""
    best: dict[int, tuple[int, int, int]] = {}
    for x in exchanges:
        window = x[0] // WINDOW_NS
        if window not in best or x[2] < best[window][2]:
            best[window] = x
    if not best:
        return None
    kept = sorted(best.values())
    return Clock(tuple(x[0] for x in kept), tuple(x[1] for x in kept), max(x[2] for x in kept))
