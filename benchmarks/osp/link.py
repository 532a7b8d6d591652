"""The messages between PS and workers beside the algorithm's own: ranks, settings, reports.

A process's place is its number in the fptps cluster, 0 for the PS; its rank is that of the command line. They are
the same until a worker is lost.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

import fptps
from fptps.torch.local._exchange import agree

from .config import SetupError

REPORT = 0  # the key of the workers' reports
TRAINING = 1  # the algorithm's first key


class Report(NamedTuple):
    """A worker's report of a round: on its message, and on the global model after it."""

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
        self.ranks = self._exchange_ranks()
        self._table = torch.zeros(kv.num_workers, len(Report._fields), dtype=torch.float64)
        self._sum = torch.zeros_like(self._table)
        self._ticket: Any = None
        kv.init(REPORT, self._table)

    def _exchange_ranks(self) -> list[int]:
        """The rank of the process at each place."""
        ranks: list[int] = self.kv.allgather_object(self.rank)
        if len(set(ranks)) < len(ranks) or ranks[0] != 0:
            raise SetupError(f"each rank must be started once, but those that were started are {sorted(ranks)}")
        return ranks

    def from_ps(self, content: Any) -> Any:
        """Returns the PS's content in all processes."""
        return self.kv.broadcast_object(content)

    def agree(self, algorithm: str, settings: str, data: str) -> None:
        """Raises a MismatchError in all processes that names those that were not started with the PS's values."""
        facts = {"algorithm": algorithm, "settings": settings, "data": data}
        agree(self.kv, facts)

    def report(self, report: Report) -> None:
        """Sends a worker's report of a round."""
        if self._ticket is not None:
            self._ticket.result(math.inf)
        self._table[self.kv.rank] = torch.tensor(report, dtype=torch.float64)
        # Every worker fills its own row and leaves the others zero: the sum is the table of all reports.
        self._ticket = self.kv.push_pull(REPORT, self._table, out=self._sum)

    def reports(self) -> list[tuple[int, Report]]:
        """On the PS: the rank and the report of each worker, once all have sent theirs."""
        self.kv.skip(REPORT).result(math.inf)
        self.kv.pull(REPORT, out=self._sum).result()
        rows = [Report(int(n), loss, c, w, int(b), int(crc)) for n, loss, c, w, b, crc in self._sum[1:].tolist()]
        return sorted(zip(self.ranks[1:], rows))
