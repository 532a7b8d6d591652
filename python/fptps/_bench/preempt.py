"""Urgency: how long a small urgent tensor takes while large ones are in flight."""

from __future__ import annotations

import random
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..ticket import Ticket
from ..worker import KVWorker
from .bound import model_rate, payload_rate
from .measure import WAIT_S, percentiles_us, progress, sleep_until
from .timeline import Timeline
from .units import FLOAT32

SAMPLES: Final = 300
"""Number of urgent tensors measured alone, and again with bulk."""
SETTLE: Final = 10
"""Number of urgent tensors before the measured ones."""
GAP_S: Final = 0.01
"""The longest pause before an urgent tensor: long compared with a packet, so that it meets the bulk at any point."""
SEED: Final = 2022
URGENT: Final = 1
BULK: Final = -1
URGENT_KEY: Final = 0
BULK_TENSORS: Final = 16


@dataclass(frozen=True)
class Options:
    """Options of the command line: sizes in bytes; link in bits per second, None if unknown; timeline: a file, None for
    none."""

    size: int
    bulk: int
    link: float | None
    timeline: Path | None


class Urgent:
    """The urgent tensor. After each sum all workers draw the same random pause, so that they push at the same time, as
    in synchronous training."""

    def __init__(self, kv: KVWorker, size: int, bar: Any, timeline: Timeline) -> None:
        self._kv = kv
        self._bar = bar
        self._timeline = timeline
        self._tensor = np.zeros(size // FLOAT32, np.float32)
        self._random = random.Random(SEED)
        kv.init(URGENT_KEY, self._tensor)

    def sample(self, count: int, name: str) -> list[float]:
        """Runs count push_pulls; returns the seconds of each, from the call to the sum. name: its in the timeline."""
        taken = []
        for number in range(count):
            sleep_until(time.perf_counter() + self._random.uniform(0, GAP_S))
            begin = time.perf_counter()
            self._kv.push_pull(URGENT_KEY, self._tensor, out=self._tensor, priority=URGENT).result(WAIT_S)
            end = time.perf_counter()
            taken.append(end - begin)
            self._timeline.add(name, number, begin, end)
            self._bar.update()
        return taken


class Bulk:
    """Large tensors that are always in flight: a thread pushes each again when its sum has arrived."""

    def __init__(self, kv: KVWorker, nbytes: int) -> None:
        self._kv = kv
        elements = nbytes // FLOAT32
        count = min(BULK_TENSORS, elements)
        self._tensors = np.array_split(np.zeros(elements, np.float32), count)
        kv.init_all(dict(enumerate(self._tensors, URGENT_KEY + 1)))
        self._tickets: list[Ticket[Any]] = []
        self._pushed = 0
        self._end: int | None = None  # total number of pushes, once it is known
        self._lock = threading.Lock()  # held around a push
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fptps-bulk", daemon=True)
        self.arrived = 0
        """Bytes whose sums have arrived."""

    def start(self) -> None:
        """Pushes all tensors, and starts the thread."""
        for _ in self._tensors:
            self._tickets.append(self._push())
        self._thread.start()

    def finish(self) -> None:
        """Ends the bulk after the same number of pushes on all workers, and waits for the sums.

        The workers are at different pushes; those behind continue up to the number of the first. No worker may push
        while they exchange their numbers, but the threads may wait for sums, which need the other workers' pushes.
        """
        with self._lock:
            self._end = max(self._kv.allgather_object(self._pushed))
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        for ticket in self._tickets:
            ticket.result(WAIT_S)

    def _run(self) -> None:
        try:
            while True:
                for slot, tensor in enumerate(self._tensors):
                    self._tickets[slot].result(WAIT_S)
                    self.arrived += tensor.nbytes
                    with self._lock:
                        if self._pushed == self._end:
                            return
                        self._tickets[slot] = self._push()
        except BaseException as failure:  # finish() raises it; a lost node fails the urgent tensor as well
            self._failure = failure

    def _push(self) -> Ticket[Any]:
        slot = self._pushed % len(self._tensors)
        self._pushed += 1
        tensor = self._tensors[slot]
        return self._kv.push_pull(URGENT_KEY + 1 + slot, tensor, out=tensor, priority=BULK)


def measure(kv: KVWorker, options: Options) -> dict[str, Any]:
    """Runs on every worker. Returns the figures of all workers."""
    bulk = Bulk(kv, options.bulk)
    total = 2 * (SETTLE + SAMPLES)
    with progress(kv.rank, total, "preempt") as bar, Timeline(options.timeline, kv.rank) as timeline:
        urgent = Urgent(kv, options.size, bar, timeline)
        urgent.sample(SETTLE, "settling")
        alone = urgent.sample(SAMPLES, "alone")
        bulk.start()
        urgent.sample(SETTLE, "settling with bulk")
        arrived, start = bulk.arrived, time.perf_counter()
        crowded = urgent.sample(SAMPLES, "with bulk")
        rate = (bulk.arrived - arrived) / (time.perf_counter() - start)
        bulk.finish()
    mean_rate = statistics.mean(kv.allgather_object(rate))
    return {
        "bench": "preempt",
        "workers": kv.num_workers,
        "servers": kv.num_servers,
        "size": options.size,
        "bulk": options.bulk,
        "samples": SAMPLES,
        "alone": percentiles_us(np.array(kv.allgather_object(alone))),
        "with_bulk": percentiles_us(np.array(kv.allgather_object(crowded))),
        "goodput_mb_s_per_worker": round(2 * mean_rate / 1e6, 3),  # pushed and pulled
        "link_bit_s": options.link,
        "link_share": link_share(kv, options.link, mean_rate),
    }


def link_share(kv: KVWorker, link: float | None, rate: float) -> float | None:
    """The fraction of the busiest link's capacity that the bulk used; None if the link's rate is unknown."""
    if link is None:
        return None
    return round(rate / model_rate(kv.num_workers, kv.num_servers, payload_rate(link)), 3)
