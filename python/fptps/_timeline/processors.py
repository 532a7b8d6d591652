"""What a program's own time was: did it use a processor, or wait for one?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from .load import Spans
from .part import Kind
from .trace import Node


class Processors:
    """Reads the samples of a process's processor time, and of its first thread's waits for a processor.

    All of both counts for the times in which the program does not wait for fptps: a sample may be longer than these,
    and the threads of the data plane use little.
    """

    def __init__(self, worker: Node, own: Sequence[tuple[int, int]]) -> None:
        """own: the spans of time in which the program does not wait, in ns."""
        spans = Spans(own)
        samples: dict[tuple[int, int], list[int]] = {}
        for e in worker.of(Kind.PROCESSOR, Kind.DELAYED).tolist():
            counts = samples.setdefault((e[0], e[0] + 1000 * e[3]), [0, 0])
            counts[e[6] == Kind.DELAYED] = 1000 * e[4]
        self._samples: list[tuple[int, int, float, float]] = []  # from, until, and the parts of own time
        for (begin, end), (used, delayed) in sorted(samples.items()):
            length = spans.within(begin, end)
            if length > 0:
                running = min(1.0, used / length)
                self._samples.append((begin, end, running, min(1.0 - running, delayed / length)))
        self._begins = [sample[0] for sample in self._samples]

    def own(self, begin: int, end: int) -> tuple[float, float]:
        """For how many ns of a stretch of its own time the program used a processor, and waited for one."""
        used = delayed = 0.0
        first = max(0, bisect_right(self._begins, begin) - 1)
        for from_, until, running, waiting in self._samples[first : bisect_left(self._begins, end)]:
            length = max(0, min(end, until) - max(begin, from_))
            used += length * running
            delayed += length * waiting
        return used, delayed
