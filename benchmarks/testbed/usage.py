"""What links have carried over time: samples, and a table, a plot in text and JSON made of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from .network import Link

INTERVAL_S: Final = 0.1
IN_USE: Final = 0.01
"""A link is in use while it carries more than this part of its rate: a heartbeat is no use."""
COLUMNS: Final = 40
BARS: Final = " ▁▂▃▄▅▆▇█"


class Sample(NamedTuple):
    """What the links have carried since the run began."""

    time: float
    """Seconds since the run began."""
    carried: Mapping[Link, int]
    """Bytes. The headers of a big packet, which the kernel splits into many, count once."""
    rates: Mapping[Link, float]
    """Bits per second that each shaped link can carry at this time."""


class Sampler:
    """Takes a sample every 100 ms, in a thread, within a `with` block: the first at its begin, the last at its end."""

    def __init__(self, counters: Callable[[], dict[Link, int]], rates: Callable[[], dict[Link, float]]) -> None:
        self.samples: list[Sample] = []
        self._counters = counters
        self._rates = rates
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="testbed-samples", daemon=True)

    def __enter__(self) -> Sampler:
        self._start = time.monotonic()
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
        due = self._start + INTERVAL_S
        while not self._end.wait(max(0.0, due - time.monotonic())):
            self._take()
            due = max(due + INTERVAL_S, time.monotonic())

    def _take(self) -> None:
        now = time.monotonic() - self._start
        carried = {link: count - self._first[link] for link, count in self._counters().items()}
        self.samples.append(Sample(now, carried, self._rates()))


class Interval(NamedTuple):
    """What a link carried between two samples."""

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
        """The part of its rate that it carried. Above 1 when the bucket was full: a burst may pass at once."""
        return self.speed / self.rate if self.rate else 0.0

    @property
    def in_use(self) -> bool:
        """Whether it carried more than a heartbeat, or, where no rate tells how much that is, anything."""
        return self.use > IN_USE if self.rate else self.carried > 0


def intervals(samples: Sequence[Sample], link: Link) -> list[Interval]:
    """What a link carried from sample to sample. Its rate is the one at the begin."""
    return [
        Interval(a.time, b.time, b.carried[link] - a.carried[link], a.rates.get(link))
        for a, b in zip(samples, samples[1:])
        if b.time > a.time
    ]


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
    """A link's use over the whole time, one bar for each part of it: a blank is no use, a full bar the whole rate."""
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


def write_json(path: Path, samples: Sequence[Sample], drops: Mapping[Link, int]) -> None:
    """Writes the samples: "times", and for each link the "bytes" carried until then and the "rates" at that time."""
    links = [
        {
            "node": link.node,
            "direction": "send" if link.sends else "receive",
            "bytes": [sample.carried[link] for sample in samples],
            "rates": [sample.rates.get(link) for sample in samples],
            "drops": drops.get(link),
        }
        for link in (samples[-1].carried if samples else ())
    ]
    path.write_text(json.dumps({"times": [round(sample.time, 6) for sample in samples], "links": links}) + "\n")
