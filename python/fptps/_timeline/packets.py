"""The ways of packets: of a contribution from a worker to the sum, and of the sum back to a worker."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .part import PACKET_BYTES, Kind
from .trace import Node, Trace

CONTRIBUTION, SUM = "contribution", "sum"

Key = tuple[int, int, int, int, int]
"""Tensor, round, packet, sender, receiver."""


@dataclass
class Way:
    """When a packet was where, in ns; None: nobody has recorded that. A worker's contribution to itself is queued and
    summed."""

    what: str
    tensor: int
    round: int
    packet: int
    sender: int
    receiver: int
    bytes: int = 0
    queued: int | None = None
    written: int | None = None
    read: int | None = None
    summed: int | None = None
    completed: bool = False
    """Whether the sum was complete with it."""


STEPS = {
    Kind.WRITTEN: (CONTRIBUTION, "written", True),
    Kind.READ: (CONTRIBUTION, "read", False),
    Kind.SUMMED: (CONTRIBUTION, "summed", False),
    Kind.SUM_WRITTEN: (SUM, "written", True),
    Kind.SUM_READ: (SUM, "read", False),
}
"""For each event of a packet: of what, which field of Way it sets, and whether the sender has recorded it."""


def ways(trace: Trace) -> list[Way]:
    """The ways of all packets of the sample that were seen written, read or summed, in the order of the first of these.
    Events of nodes that are not aligned are left out."""
    contributions: dict[Key, Way] = {}
    sums: dict[Key, Way] = {}
    found = {CONTRIBUTION: contributions, SUM: sums}
    for node in trace.nodes:
        if not node.aligned:
            continue
        for e in node.of(*STEPS, Kind.COMPLETE).tolist():
            time, tensor, round, packet, size, peer, kind = e
            if kind == Kind.COMPLETE:
                way = contributions.get((tensor, round, packet, peer, node.id))
                if way is not None:
                    way.completed = True
                continue
            what, field, sends = STEPS[Kind(kind)]
            ends = (node.id, peer) if sends else (peer, node.id)
            way = found[what].get((tensor, round, packet, *ends))
            if way is None:
                way = found[what][(tensor, round, packet, *ends)] = Way(what, tensor, round, packet, *ends)
            setattr(way, field, time)
            way.bytes = max(way.bytes, size)
    for node in trace.nodes:
        if node.aligned:
            _set_queued(node, found)
    all_ = [*contributions.values(), *sums.values()]
    for way in all_:
        if way.written is not None and way.read is not None:
            way.written = min(way.written, way.read)  # it may be read before the sender's call has returned
    return sorted(all_, key=_first)


def _first(way: Way) -> int:
    return next(t for t in (way.written, way.read, way.summed) if t is not None)


def _set_queued(node: Node, found: dict[str, dict[Key, Way]]) -> None:
    """Of several packets that were queued together, only the first has an event: all of them were queued then."""
    runs: dict[tuple[str, int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for time, tensor, round, packet, size, peer, kind in node.of(Kind.QUEUED, Kind.SUM_QUEUED).tolist():
        what = CONTRIBUTION if kind == Kind.QUEUED else SUM
        runs[what, tensor, round, peer].append((packet, packet + max(1, -(-size // PACKET_BYTES)), time))
    for list_ in runs.values():
        list_.sort()
    for way in _of_sender(node.id, found):
        queued = runs.get((way.what, way.tensor, way.round, way.receiver), [])
        at = bisect_right(queued, (way.packet, 2**40, 0)) - 1
        if at >= 0 and way.packet < queued[at][1]:
            way.queued = queued[at][2]


def _of_sender(sender: int, found: dict[str, dict[Key, Way]]) -> Iterator[Way]:
    for ways in found.values():
        for way in ways.values():
            if way.sender == sender:
                yield way
