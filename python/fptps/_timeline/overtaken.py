"""Tensors whose packets go before those of tensors that the program waits for earlier."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final

from .part import NO_TENSOR, Kind
from .trace import Trace
from .waits import OWN, Piece, What

Pair = tuple[int, int]
"""A tensor, and one whose packets wait behind its packets."""
PAIRS: Final = 10
"""How many are looked at: those that wait longest."""


class Overtaking:
    """Finds tensors that overtake others, of lower or equal priority."""

    def __init__(self, trace: Trace) -> None:
        self._written: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for node in trace.nodes:
            for e in node.of(Kind.WRITTEN, Kind.SUM_WRITTEN).tolist():
                times, tensors = self._written[node.id, e[5]]
                times.append(e[0])
                tensors.append(e[1])
        self._priorities: dict[int, int] = {}
        for worker in trace.workers:
            called = worker.of(Kind.CALLED)
            self._priorities.update(zip(called["tensor"].tolist(), called["packet"].astype("i4").tolist()))

    def costs(self, pieces: list[Piece]) -> dict[Pair, float]:
        """What overtaking costs a worker in all its steps, in ns. pieces: the worker's, in order.

        If the other tensor came later, the program would compute meanwhile, until it waits for that one. So the cost is
        at most the time for which the program computes between the two waits.
        """
        behind: dict[Pair, dict[int, float]] = defaultdict(dict)
        for i, piece in enumerate(pieces):
            for other, ns in self._ahead(piece).items():
                behind[other, piece.tensor][i] = ns
        longest = sorted(behind, key=lambda pair: -sum(behind[pair].values()))[:PAIRS]
        return {pair: _cost(pieces, pair, behind[pair]) for pair in longest}

    def _ahead(self, piece: Piece) -> dict[int, float]:
        """For how many ns of a piece packets of other tensors went before those that it waited for."""
        if piece.what != What.QUEUE or piece.tensor == NO_TENSOR:
            return {}
        times, tensors = self._written.get((piece.node, piece.receiver), ([], []))
        among = Counter(tensors[bisect_left(times, piece.begin) : bisect_left(times, piece.end)])
        return {
            other: piece.ns * count / sum(among.values())
            for other, count in among.items()
            if other != piece.tensor and self._priorities.get(other, 0) >= self._priorities.get(piece.tensor, 0)
        }


def _cost(pieces: list[Piece], pair: Pair, behind: dict[int, float]) -> float:
    """The cost of one pair. behind: for how many ns each piece has waited for the pair's first."""
    total = waited = computed = 0.0
    for i, piece in enumerate(pieces):
        if piece.tensor == NO_TENSOR:
            computed += piece.ns if waited and piece.what in OWN else 0.0
            continue
        if piece.tensor == pair[0] or (piece.tensor == pair[1] and computed):
            total += min(waited, computed)
            waited = computed = 0.0
        waited += behind.get(i, 0.0)
    return total + min(waited, computed)
