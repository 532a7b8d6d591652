"""Urgency: how long a small urgent tensor takes while large ones are on their way."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..ticket import Ticket
from ..worker import KVWorker
from .bound import model_rate, payload_rate
from .exchange import Exchange
from .measure import WAIT_S, percentiles_us, progress, sleep_until
from .units import FLOAT32

SAMPLES: Final = 300
"""Urgent tensors that are measured, alone and again with bulk."""
SETTLE: Final = 10
"""Urgent tensors before those that are measured."""
GAP_S: Final = 0.01
"""The longest pause before an urgent tensor: long against a packet's time, so that it meets bulk at any point."""
SEED: Final = 2022
URGENT: Final = 1
BULK: Final = -1
URGENT_KEY: Final = 0
BULK_TENSORS: Final = 16


@dataclass(frozen=True)
class Options:
    """What is asked for on the command line: sizes in bytes; link in bits per second, None if it is not known."""

    size: int
    bulk: int
    link: float | None


class Urgent:
    """The urgent tensor. After each sum all workers draw the same pause, so that they push together, as workers do
    that train synchronously."""

    def __init__(self, kv: KVWorker, size: int, bar: Any) -> None:
        self._kv = kv
        self._bar = bar
        self._tensor = np.zeros(size // FLOAT32, np.float32)
        self._random = random.Random(SEED)
        kv.init(URGENT_KEY, self._tensor)

    def sample(self, count: int) -> list[float]:
        """Seconds that each of so many took, from the call to the sum."""
        taken = []
        for _ in range(count):
            sleep_until(time.perf_counter() + self._random.uniform(0, GAP_S))
            begin = time.perf_counter()
            self._kv.push_pull(URGENT_KEY, self._tensor, out=self._tensor, priority=URGENT).wait(WAIT_S)
            taken.append(time.perf_counter() - begin)
            self._bar.update()
        return taken


class Bulk:
    """Large tensors that are always in flight: a thread pushes each again when its sum is here."""

    def __init__(self, kv: KVWorker, nbytes: int) -> None:
        self._kv = kv
        elements = nbytes // FLOAT32
        count = min(BULK_TENSORS, elements)
        self._tensors = np.array_split(np.zeros(elements, np.float32), count)
        for key, tensor in enumerate(self._tensors, URGENT_KEY + 1):
            kv.init(key, tensor)
        self._tickets: list[Ticket[Any]] = []
        self._pushed = 0
        self._end: int | None = None  # how many pushes it will have been, once that is known
        self._lock = threading.Lock()  # held around a push
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fptps-bulk", daemon=True)
        self.arrived = 0
        """Bytes whose sums are here."""

    def start(self) -> None:
        """Returns when everything is in flight."""
        for _ in self._tensors:
            self._tickets.append(self._push())
        self._thread.start()

    def finish(self, exchange: Exchange) -> None:
        """Ends it after equally many pushes on all workers, and waits for them.

        The workers are not at the same push now, and those behind go on to where the first is. None may push while
        they find out how far that is; but the threads may wait for sums, which need the others' pushes.
        """
        with self._lock:
            self._end = int(exchange.gather([self._pushed]).max())
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        for ticket in self._tickets:
            ticket.wait(WAIT_S)

    def _run(self) -> None:
        try:
            while True:
                for slot, tensor in enumerate(self._tensors):
                    self._tickets[slot].wait(WAIT_S)
                    self.arrived += tensor.nbytes
                    with self._lock:
                        if self._pushed == self._end:
                            return
                        self._tickets[slot] = self._push()
        except BaseException as failure:  # told by finish(); a lost node is noticed by the urgent tensor as well
            self._failure = failure

    def _push(self) -> Ticket[Any]:
        slot = self._pushed % len(self._tensors)
        self._pushed += 1
        tensor = self._tensors[slot]
        return self._kv.push_pull(URGENT_KEY + 1 + slot, tensor, out=tensor, priority=BULK)


def measure(kv: KVWorker, options: Options) -> dict[str, Any]:
    """Runs on every worker, and gives the figures of all of them."""
    exchange = Exchange(kv)
    bulk = Bulk(kv, options.bulk)
    with progress(kv.rank, 2 * (SETTLE + SAMPLES), "preempt") as bar:
        urgent = Urgent(kv, options.size, bar)
        urgent.sample(SETTLE)
        alone = urgent.sample(SAMPLES)
        bulk.start()
        urgent.sample(SETTLE)
        arrived, start = bulk.arrived, time.perf_counter()
        crowded = urgent.sample(SAMPLES)
        rate = (bulk.arrived - arrived) / (time.perf_counter() - start)
        bulk.finish(exchange)
    rates = exchange.gather([rate])
    return {
        "bench": "preempt",
        "workers": kv.num_workers,
        "servers": kv.num_servers,
        "size": options.size,
        "bulk": options.bulk,
        "samples": SAMPLES,
        "alone": percentiles_us(exchange.gather(alone)),
        "with_bulk": percentiles_us(exchange.gather(crowded)),
        "goodput_mb_s_per_worker": round(2 * float(rates.mean()) / 1e6, 3),  # pushed and pulled
        "link_bit_s": options.link,
        "link_share": link_share(kv, options.link, rates.mean()),
    }


def link_share(kv: KVWorker, link: float | None, rate: float) -> float | None:
    """Which part of what the busiest link can carry the bulk took; None without a known link."""
    if link is None:
        return None
    return round(float(rate / model_rate(kv.num_workers, kv.num_servers, payload_rate(link))), 3)
