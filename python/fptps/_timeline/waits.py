"""Where the time of the workers' steps went.

A step of a worker is divided into pieces. While the program waits for a tensor, the piece is about what the tensor
lacks at that moment: the last packet of its sum is followed back to the contribution with which that sum was complete,
and to the worker that has sent it. Where that worker had not even called push, the piece is about what it did instead.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .packets import CONTRIBUTION, SUM, Way, ways
from .part import NO_TENSOR, Kind
from .processors import Processors
from .steps import Step, steps_of
from .trace import Node, Trace

GAP_NS = 1_000_000
"""A long wait of Python's is a row of short ones, with less than that between them."""

DEPTH = 3
"""Of workers that wait for workers: what is behind is called the program's."""


class What(enum.Enum):
    """What a piece of a step's time went into."""

    COMPUTE = "compute"
    DELAYED = "no processor"
    DATA = "program idle"
    QUEUE = "queue"
    LINK = "link"
    AGGREGATOR = "aggregator"
    CALLER = "caller"
    OTHER = "other"


OWN = frozenset({What.COMPUTE, What.DELAYED, What.DATA})
"""Of a program, not of fptps."""


@dataclass(frozen=True)
class Piece:
    """A piece of a step of a worker; ns. Begin and end are those of the stretch of time that it is a part of."""

    what: What
    ns: float
    begin: int
    end: int
    node: int
    """Whose program, processor or caller it was; of a queue or link the sender."""
    receiver: int = 0
    """Of a queue or link."""
    tensor: int = NO_TENSOR
    """The tensor that the program waited for; NO_TENSOR: its own time."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of time of a worker: its own, or a wait for a tensor."""

    begin: int
    end: int
    waits: bool
    tensor: int = NO_TENSOR


class Division:
    """Divides the steps of all workers."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._workers = {worker.id: worker for worker in trace.workers}
        self.steps = {id: steps_of(worker) for id, worker in self._workers.items()}
        self._stretches = {id: stretches(worker, self.steps[id]) for id, worker in self._workers.items()}
        self._begins = {id: [s.begin for s in list_] for id, list_ in self._stretches.items()}
        self._processors = {
            id: Processors(worker, [(s.begin, s.end) for s in self._stretches[id] if not s.waits])
            for id, worker in self._workers.items()
        }
        self._called = {id: _times(worker, Kind.CALLED) for id, worker in self._workers.items()}
        self._done = {id: _times(worker, Kind.DONE) for id, worker in self._workers.items()}
        self._ends: dict[int, dict[int, list[tuple[int, int]]]] = {}
        for id, done in self._done.items():
            ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for (tensor, round), time in done.items():
                ends[tensor].append((time, round))
            self._ends[id] = {tensor: sorted(list_) for tensor, list_ in ends.items()}
        self._last: dict[tuple[int, int, int], Way] = {}  # by worker, tensor and round
        self._arrivals: dict[tuple[int, int, int], int] = {}  # when those arrived
        self._completing: dict[tuple[int, int, int, int], Way] = {}  # by aggregator, tensor, round and packet
        self._follow(ways(trace))

    def _follow(self, all_: list[Way]) -> None:
        for way in all_:
            if way.what == CONTRIBUTION and way.completed:
                self._completing[way.receiver, way.tensor, way.round, way.packet] = way
            key = (way.receiver, way.tensor, way.round)
            arrived = _arrived(way)
            if arrived is not None and arrived >= self._arrivals.get(key, 0):
                self._last[key], self._arrivals[key] = way, arrived

    def pieces(self, worker: int) -> list[Piece]:
        """All pieces of a worker's steps."""
        return [piece for s in self._stretches[worker] for piece in self._divide(worker, s, DEPTH)]

    def _divide(self, worker: int, s: Stretch, depth: int) -> Iterator[Piece]:
        if s.waits and s.tensor != NO_TENSOR:
            yield from self._wait(worker, s, depth)
        elif s.waits:
            yield Piece(What.OTHER, s.end - s.begin, s.begin, s.end, worker)
        else:
            used, delayed = self._processors[worker].own(s.begin, s.end)
            idle = s.end - s.begin - used - delayed
            for what, ns in ((What.COMPUTE, used), (What.DELAYED, delayed), (What.DATA, idle)):
                if ns > 0:
                    yield Piece(what, ns, s.begin, s.end, worker)

    def _wait(self, worker: int, s: Stretch, depth: int) -> Iterator[Piece]:
        """Divides a wait by what the tensor lacked, moment by moment."""
        ends = self._ends[worker].get(s.tensor, [])
        at = bisect_left(ends, (s.begin, 0))
        if at == len(ends):
            yield Piece(What.OTHER, s.end - s.begin, s.begin, s.end, worker, tensor=s.tensor)
            return
        done, round = ends[at]
        last = self._last.get((worker, s.tensor, round))
        now = s.begin
        stages = self._calls(worker, s.tensor, round, done) if last is None else self._stages(worker, last, done)
        for until, what, node, receiver in stages:
            until = min(max(until, now), s.end)
            if until == now:
                continue
            if what is None:
                yield from self._instead(node, now, until, s.tensor, depth)
            else:
                yield Piece(what, until - now, now, until, node, receiver, s.tensor)
            now = until
        if now < s.end:
            yield Piece(What.CALLER, s.end - now, now, s.end, worker, tensor=s.tensor)

    def _calls(self, worker: int, tensor: int, round: int, done: int) -> Iterator[tuple[int, What | None, int, int]]:
        """The stages of a sum of which no packet is in the sample: only the calls are known."""
        calls = [(times.get((tensor, round), 0), id) for id, times in self._called.items() if id != worker]
        if calls:
            time, id = max(calls)
            yield time, None, id, 0
        yield done, What.OTHER, worker, 0

    def _stages(self, worker: int, last: Way, done: int) -> Iterator[tuple[int, What | None, int, int]]:
        """Until when which stage of a sum's way lasted, and where: None is what a worker did before it called."""
        aggregator = last.sender if last.what == SUM else worker
        c = self._completing.get((aggregator, last.tensor, last.round, last.packet))
        stages: list[tuple[int | None, What | None, int, int]] = []
        if c is not None:
            if c.sender != worker:
                stages.append((self._called.get(c.sender, {}).get((c.tensor, c.round)), None, c.sender, 0))
            if c.read is not None:  # else the aggregator is the sender itself
                stages.append((c.written, What.QUEUE, c.sender, c.receiver))
                stages.append((c.read, What.LINK, c.sender, c.receiver))
            stages.append((c.summed, What.AGGREGATOR, aggregator, 0))
        if last.what == SUM:
            stages.append((last.queued, What.AGGREGATOR, aggregator, 0))
            stages.append((last.written, What.QUEUE, aggregator, worker))
            stages.append((last.read, What.LINK, aggregator, worker))
        known = [(until, what, node, receiver) for until, what, node, receiver in stages if until is not None]
        yield from known
        # Packets that are not in the sample may have come later, and for the same reason.
        if known and known[-1][0] < done:
            lengths = [b[0] - a[0] for a, b in zip(known, known[1:])]
            most = lengths.index(max(lengths)) + 1 if lengths else 0
            _, what, node, receiver = known[most]
            yield done, what, node, receiver

    def _instead(self, other: int, begin: int, end: int, tensor: int, depth: int) -> Iterator[Piece]:
        """What another worker did in a time in which it had not called yet."""
        covered = 0
        if other in self._workers and depth > 0:
            list_ = self._stretches[other]
            first = max(0, bisect_right(self._begins[other], begin) - 1)
            for s in itertools.takewhile(lambda s: s.begin < end, itertools.islice(list_, first, None)):
                part = replace(s, begin=max(begin, s.begin), end=min(end, s.end))
                if part.begin < part.end:
                    covered += part.end - part.begin
                    for piece in self._divide(other, part, depth - 1):
                        yield replace(piece, tensor=tensor)
        if covered < end - begin:
            yield Piece(What.COMPUTE, end - begin - covered, begin, end, other, tensor=tensor)


def _arrived(way: Way) -> int | None:
    """When its receiver had the sum of a packet; None: it was not with this."""
    if way.what == SUM:
        return way.read
    return way.summed if way.completed else None


def stretches(worker: Node, steps: list[Step]) -> list[Stretch]:
    """A worker's steps as its waits and what is between them. Of waits that overlap the first counts."""
    if not steps:
        return []
    begin, end = steps[0].begin, steps[-1].end
    found: list[Stretch] = []
    now = begin
    for e in worker.of(Kind.WAITED):
        from_, until = max(now, int(e["time"])), min(end, int(e["time"]) + 1000 * int(e["bytes"]))
        if from_ >= until:
            continue
        if found and from_ - now < GAP_NS and found[-1].waits and found[-1].tensor == e["tensor"]:
            found[-1] = replace(found[-1], end=until)
            now = until
            continue
        if from_ > now:
            found.append(Stretch(now, from_, False))
        found.append(Stretch(from_, until, True, int(e["tensor"])))
        now = until
    if now < end:
        found.append(Stretch(now, end, False))
    return found


def _times(node: Node, kind: Kind) -> dict[tuple[int, int], int]:
    """When events of a kind happened, by tensor and round."""
    return {(e[1], e[2]): e[0] for e in node.of(kind).tolist()}
