"""The use of links over time: samples, with a table, a text plot and JSON."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from .quantities import Link

INTERVAL_S: Final = 0.02
COARSE_S: Final = 0.1
"""The intervals of the table: in shorter ones the bursts that a link's bucket lets through look like use."""
IN_USE: Final = 0.01
"""A link is in use while it carries more than this fraction of its rate; heartbeats stay below."""
COLUMNS: Final = 40
BARS: Final = " ▁▂▃▄▅▆▇█"


class Sample(NamedTuple):
    """The bytes that links have carried since the run began."""

    time: float
    """Seconds since the run began."""
    carried: Mapping[Link, int]
    """Bytes. The headers of a big packet, which the kernel splits into many, count once."""
    rates: Mapping[Link, float]
    """Bits per second that each shaped link can carry at this time."""
    took: float = 0.0
    """Seconds from `time` until all links had been read: on a busy machine their counts may be so much younger."""


class Sampler:
    """Takes a sample again and again, in a thread, during a `with` block, including its begin and end."""

    def __init__(
        self,
        counters: Callable[[], dict[Link, int]],
        rates: Callable[[], dict[Link, float]],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.samples: list[Sample] = []
        self._interval_s = interval_s
        self._counters = counters
        self._rates = rates
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="testbed-samples", daemon=True)

    def __enter__(self) -> Sampler:
        self.start = time.monotonic()
        self._first = self._counters()
        self._take()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._take()

    def _run(self) -> None:
        due = self.start + self._interval_s
        while not self._end.wait(max(0.0, due - time.monotonic())):
            self._take()
            due = max(due + self._interval_s, time.monotonic())

    def _take(self) -> None:
        now = time.monotonic() - self.start
        carried = {link: count - self._first[link] for link, count in self._counters().items()}
        took = time.monotonic() - self.start - now
        self.samples.append(Sample(now, carried, self._rates(), took))


class Interval(NamedTuple):
    """The use of a link between two samples."""

    begin: float
    end: float
    carried: int
    rate: float | None
    """Bits per second that it can carry, if it is shaped."""

    @property
    def speed(self) -> float:
        """Bits per second that it carried."""
        return self.carried * 8 / (self.end - self.begin)

    @property
    def use(self) -> float:
        """The used fraction of its rate. May exceed 1 after a pause: a full token bucket lets a burst pass."""
        return self.speed / self.rate if self.rate else 0.0

    @property
    def in_use(self) -> bool:
        """Whether it carried more than heartbeats; for an unshaped link, anything."""
        return self.use > IN_USE if self.rate else self.carried > 0


def intervals(samples: Sequence[Sample], link: Link) -> list[Interval]:
    """The use of a link from sample to sample, with the rate at the begin of each interval."""
    return [
        Interval(a.time, b.time, b.carried[link] - a.carried[link], a.rates.get(link))
        for a, b in zip(samples, samples[1:])
        if b.time > a.time
    ]


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Samples at least 100 ms apart, with the first and the last one."""
    kept: list[Sample] = []
    for sample in samples[:-1]:
        if not kept or sample.time - kept[-1].time >= COARSE_S:
            kept.append(sample)
    return [*kept, *samples[-1:]]


def carried_between(samples: Sequence[Sample], link: Link, begin: float, end: float) -> tuple[float, float]:
    """The bytes that a link carried between two times, and those that it could have; evenly within an interval."""
    times = [sample.time for sample in samples]
    within = samples[max(0, bisect.bisect_left(times, begin) - 1) : bisect.bisect_right(times, end) + 1]
    carried = able = 0.0
    for each in intervals(within, link):
        seconds = min(each.end, end) - max(each.begin, begin)
        if seconds > 0:
            carried += each.carried * seconds / (each.end - each.begin)
            able += (each.rate or 0.0) / 8 * seconds
    return carried, able


class Use(NamedTuple):
    """The use of a link, while it was in use: bits per second, and parts of its rate."""

    mean: float
    peak: float
    mean_use: float
    peak_use: float
    seconds: float
    """How long it was in use."""


def use_of(samples: Sequence[Sample], link: Link) -> Use:
    """The mean and the peak use of a link."""
    busy = [each for each in intervals(samples, link) if each.in_use]
    seconds = sum(each.end - each.begin for each in busy)
    if not busy:
        return Use(0.0, 0.0, 0.0, 0.0, 0.0)
    able = sum((each.rate or 0.0) * (each.end - each.begin) for each in busy)
    carried = 8.0 * sum(each.carried for each in busy)
    return Use(
        carried / seconds,
        max(each.speed for each in busy),
        carried / able if able else 0.0,
        max(each.use for each in busy),
        seconds,
    )


def sparkline(samples: Sequence[Sample], link: Link, columns: int = COLUMNS) -> str:
    """A link's use over time as bars, from blank (unused) to full (its whole rate)."""
    pieces = intervals(samples, link)
    if not pieces:
        return ""
    begin, width = pieces[0].begin, (pieces[-1].end - pieces[0].begin) / columns
    line = ""
    for column in range(columns):
        left, right = begin + column * width, begin + (column + 1) * width
        use = sum(max(0.0, min(p.end, right) - max(p.begin, left)) * p.use for p in pieces) / width
        bar = round(use * (len(BARS) - 1))
        line += BARS[min(max(bar, 1 if use > IN_USE else 0), len(BARS) - 1)]
    return line


def table(samples: Sequence[Sample], drops: Mapping[Link, int]) -> str:
    """The use of all links, in Mbit/s and percent of their rates, with drops and a plot over time."""
    samples = thinned(samples)
    seconds = samples[-1].time if samples else 0.0
    title = f"over {seconds:.1f} s"
    head = f"{'link':<19} {'Mbit/s':>8} {'in use':>7} {'mean':>8} {'%':>5} {'peak':>8} {'%':>5} {'drops':>6}  {title}"
    lines = [head]
    for link in samples[-1].carried if samples else ():
        use = use_of(samples, link)
        rate = samples[-1].rates.get(link)
        mean, peak = f"{use.mean / 1e6:.1f}", f"{use.peak / 1e6:.1f}"
        row = f"{link!s:<19} {f'{rate / 1e6:g}' if rate else '-':>8} {use.seconds:>6.1f}s {mean:>8} "
        row += f"{use.mean_use:>5.0%} {peak:>8} {use.peak_use:>5.0%} " if rate else f"{'-':>5} {peak:>8} {'-':>5} "
        row += f"{drops.get(link, '-'):>6}"
        lines.append(f"{row}  |{sparkline(samples, link)}|" if rate else row)
    return "\n".join(lines)
