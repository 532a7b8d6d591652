"""What PS and workers tell each other beside the algorithm's own messages: who is there, settings, reports.

A process's place is its number in the fptps cluster, 0 for the PS; its rank is that of the command line. They are
the same until a worker is lost.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import torch
from config import SetupError

import fptps
from fptps.torch.local.exchange import agree

PRESENT, FACTS, REPORT = range(3)  # keys
WORDS = 3  # the first of those by which the PS tells something, a new one each time
TRAINING = 100  # the first of the algorithm's
WORD_BYTES = 4096


class Report(NamedTuple):
    """What a worker tells when a round has ended: of its message, and of the model that came of it."""

    iterations: int
    train_loss: float
    communication_s: float  # from the message's start to the sum's arrival, by the worker's own clock
    waited_s: float  # of these, in which it did nothing else
    bytes_sent: int
    model_crc32: int  # of its global model


class Link:
    def __init__(self, kv: fptps.KVWorker, rank: int) -> None:
        self.kv = kv
        self.rank = rank
        if kv.num_workers < 2:
            raise SetupError("one process is too few: rank 0 is the PS, the others train")
        self.ranks = self._call_the_roll()
        self._table = torch.zeros(kv.num_workers, len(Report._fields), dtype=torch.float64)
        self._sum = torch.zeros_like(self._table)
        self._ticket: Any = None
        kv.init(REPORT, self._table)
        self._words = WORDS

    def _call_the_roll(self) -> list[int]:
        """The rank at each place."""
        present = torch.zeros(self.kv.num_workers, dtype=torch.int64)
        self.kv.init(PRESENT, present)
        present[self.kv.rank] = self.rank
        self.kv.push_pull(PRESENT, present, out=present).wait()
        ranks: list[int] = present.tolist()
        if len(set(ranks)) < len(ranks) or ranks[0] != 0:
            raise SetupError(f"each rank must be started once, but those that were started are {sorted(ranks)}")
        return ranks

    def from_ps(self, content: Any) -> Any:
        """The PS gives something that JSON can carry; everyone gets it."""
        data = torch.zeros(WORD_BYTES, dtype=torch.uint8)
        if self.rank == 0:
            raw = json.dumps(content).encode()
            if len(raw) > WORD_BYTES:
                raise SetupError(f"the settings are {len(raw)} bytes, but at most {WORD_BYTES} can be sent")
            data[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
        self.kv.init(self._words, data)
        self.kv.pull(self._words, out=data).wait()
        self._words += 1
        return json.loads(bytes(data.tolist()).rstrip(b"\0"))

    def agree(self, algorithm: str, settings: str, data: str) -> None:
        """MismatchError, at all, names who was started with something else than the PS."""
        facts = {"algorithm": algorithm, "settings": settings, "data": data}
        self.kv.init(FACTS, torch.zeros(self.kv.num_workers, len(facts), dtype=torch.int64))
        agree(self.kv, FACTS, facts)

    def report(self, report: Report) -> None:
        """A worker's part in a round's reports."""
        if self._ticket is not None:
            self._ticket.wait(math.inf)
        self._table[self.kv.rank] = torch.tensor(report, dtype=torch.float64)
        # A sum in which every worker fills its own row and leaves the others zero is a table.
        self._ticket = self.kv.push_pull(REPORT, self._table, out=self._sum)

    def reports(self) -> list[tuple[int, Report]]:
        """The PS's part: the rank and the report of each worker."""
        self.kv.skip(REPORT).wait(math.inf)
        self.kv.pull(REPORT, out=self._sum).wait()
        rows = [Report(int(n), loss, c, w, int(b), int(crc)) for n, loss, c, w, b, crc in self._sum[1:].tolist()]
        return sorted(zip(self.ranks[1:], rows))
