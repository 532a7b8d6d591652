"""What makes a training slow, and what to change."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

from .load import Load, Spans, load
from .overtaken import Overtaking
from .part import NO_TENSOR
from .trace import Trace
from .waits import OWN, Division, Piece, What

UNEQUAL: Final = 1.3
"""A node with so many times the load of the others has too much, a program that takes so many times as long is slow."""
IDLE: Final = 0.4
"""A program that uses no processor for so much of its own time waits for something."""
LEAST: Final = 0.05
"""The part of a step below which a cause is not worth naming."""

NETWORK: Final = (What.QUEUE, What.LINK, What.AGGREGATOR)


@dataclass(frozen=True)
class Cause:
    """Why steps take longer than they could. kind: "slow link", "slow worker", "busy aggregator", "wrong plan",
    "priority", "data", or "network"."""

    kind: str
    where: str
    """The node, or the tensor."""
    ns: float
    """Of a step, on average of the workers."""
    why: str
    change: str


class Analysis:
    """Where the time of the steps went, and why. Of several workers everything is the average."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        division = Division(trace)
        self.steps = division.steps
        self.pieces = {worker: division.pieces(worker) for worker in self.steps}
        self.count = sum(map(len, self.steps.values()))
        """Steps of all workers."""
        self.step_ns = mean([s.end - s.begin for steps in self.steps.values() for s in steps] or [0])

    def all(self) -> list[tuple[int, Piece]]:
        """All pieces, each with the worker whose step it is a part of."""
        return [(worker, piece) for worker, pieces in self.pieces.items() for piece in pieces]

    def per_step(self, pieces: list[Piece]) -> float:
        """The ns of pieces in a step."""
        return sum(piece.ns for piece in pieces) / max(1, self.count)

    def causes(self) -> list[Cause]:
        """The causes that are worth naming, the greatest first."""
        priority = self._priority()
        found = [*self._programs(), *priority, *self._bottleneck(sum(cause.ns for cause in priority))]
        return sorted((c for c in found if c.ns >= LEAST * self.step_ns), key=lambda c: -c.ns)

    def _programs(self) -> list[Cause]:
        """Programs that the others wait for, and programs that wait for their data."""
        causes = []
        own = {w: [p for p in pieces if p.node == w and p.tensor == NO_TENSOR] for w, pieces in self.pieces.items()}
        steps = {w: max(1, len(list_)) for w, list_ in self.steps.items()}
        takes = {w: sum(p.ns for p in list_ if p.what in OWN) / steps[w] for w, list_ in own.items()}
        idle = {w: sum(p.ns for p in list_ if p.what == What.DATA) / steps[w] for w, list_ in own.items()}
        waited: dict[int, float] = defaultdict(float)
        for worker, piece in self.all():
            if piece.node != worker and piece.what in OWN:
                waited[piece.node] += piece.ns / max(1, self.count)
        starved = [w for w in idle if idle[w] >= IDLE * takes[w] and idle[w] >= LEAST * self.step_ns]
        if starved and len(starved) == len(takes):
            ns = mean(idle.values())
            causes.append(self._data("every worker", ns, ns))
            return causes
        for worker, ns in waited.items():
            others = median([takes[w] for w in takes if w != worker] or [0.0])
            if takes.get(worker, 0.0) < UNEQUAL * others:
                continue
            name = self.trace.name(worker)
            if worker in starved:
                causes.append(self._data(name, idle[worker], ns))
                continue
            why = f"its program takes {_ms(takes[worker])} of each step, the others' {_ms(others)}; they wait for it"
            change = f"look at what else runs on its machine, and at its share of the data: {name} sets the pace"
            causes.append(Cause("slow worker", name, ns, why, change))
        return causes

    def _data(self, where: str, idle: float, ns: float) -> Cause:
        why = f"the program neither computes nor waits for fptps for {_ms(idle)} of each step: for its data, it seems"
        change = "give the DataLoader more workers (num_workers), let it prefetch, or look for another wait in the loop"
        return Cause("data", where, ns, why, change)

    def _priority(self) -> list[Cause]:
        """The tensor that costs most by overtaking those for which programs wait earlier."""
        overtaking = Overtaking(self.trace)
        costs: dict[tuple[int, int], float] = defaultdict(float)
        for pieces in self.pieces.values():
            for pair, ns in overtaking.costs(pieces).items():
                costs[pair] += ns / max(1, self.count)
        if not costs:
            return []
        pair = max(costs, key=lambda pair: costs[pair])
        names = [self.trace.tensors.get(tensor, f"tensor {tensor}") for tensor in pair]
        why = f"its packets go before those of {names[1]}, for which programs wait earlier"
        change = f"give {names[0]} a lower priority than {names[1]}, so that it travels while the program computes"
        return [Cause("priority", names[0], costs[pair], why, change)]

    def _bottleneck(self, known: float) -> list[Cause]:
        """The node whose link or processor the sums wait for. known: the ns of these waits that priorities explain."""
        pieces = [piece for _, piece in self.all() if piece.what in NETWORK]
        spans = Spans((piece.begin, piece.end) for piece in pieces)
        if not spans.total:
            return []
        loads = {n.id: load(n, spans) for n in self.trace.nodes if n.aligned and n.role != "scheduler"}
        touched: dict[int, float] = defaultdict(float)
        for piece in pieces:
            for node in {piece.node, piece.receiver} & set(loads):
                touched[node] += piece.ns / max(1, self.count)
        if not touched:
            return []
        busiest = max(touched, key=lambda n: touched[n] * max(loads[n].use, loads[n].loop))
        return [self._judge(busiest, touched[busiest] - known, loads)]

    def _judge(self, node: int, ns: float, loads: dict[int, Load]) -> Cause:
        mine, name = loads[node], self.trace.name(node)
        others = [one for id, one in loads.items() if id != node]
        rate = mean([one.rate for one in others] or [0.0])
        most = median([one.most for one in others] or [0.0])
        share = self.shares().get(name, 0.0)
        link = f"its link carries {mine.rate:.0f} Mbit/s while workers wait, those of the others {rate:.0f}"
        if mine.busy:
            why = f"the thread that sums, or sends, is busy for {mine.loop:.0%} of the time in which workers wait"
            change = f"give {name} a processor of its own, see what else runs there, or let it sum less (FPTPS_SHARE)"
            return Cause("busy aggregator", name, ns, why, change)
        if share and mine.rate >= UNEQUAL * rate:
            why = f"it does {share:.0%} of the summing, and {link}"
            change = "leave FPTPS_SHARE unset, so that fptps divides the summing by the links; or add servers"
            return Cause("wrong plan", name, ns, why, change)
        if mine.most * UNEQUAL <= most:
            why = f"its link carries {mine.most:.0f} Mbit/s at most, those of the others {most:.0f}"
            change = f"look at {name}'s interface, cable and neighbours: `fptps bench net` measures the link"
            return Cause("slow link", name, ns, why, change)
        why = f"all links are loaded alike: {link}"
        change = "send less (compression, local updates), or give the backward pass more to overlap with"
        return Cause("network", name, ns, why, change)

    def shares(self) -> dict[str, float]:
        """The parts of the summing, by the plan that a worker knew last."""
        for worker in self.trace.workers:
            if worker.part.head["shares"]:
                return {share["node"]: share["part"] for share in worker.part.head["shares"]}
        return {}


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms"
