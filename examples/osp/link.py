"""The cluster as the experiment sees it: one PS (rank 0) and P workers that send it a message each round.

No node collects the messages: fptps sums them on their way, wherever its aggregators are, and the sum reaches
the PS and every worker at the same time. The PS takes part with nothing of its own (kv.skip).

A round has no timeout: K steps take as long as they take, and a node that dies is an error by itself.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from config import SetupError

import fptps

ROLL_CALL, SETTINGS, MESSAGE, REPORT = range(4)  # keys
SETTINGS_BYTES = 4096


class Report(NamedTuple):
    """What a worker tells about its round, beside the message."""

    iterations: int
    train_loss: float
    communication_s: float = 0.0  # from the message's start to the sum's arrival, by the worker's own clock
    bytes_sent: int = 0


class Link:
    def __init__(self, kv: fptps.KVWorker, rank: int) -> None:
        self.kv = kv
        self.rank = rank
        self.workers = kv.num_workers - 1
        if self.workers < 1:
            raise SetupError("one process is too few: rank 0 is the PS, the others train")
        self._call_the_roll()
        self._table = torch.zeros(self.workers, len(Report._fields), dtype=torch.float64)
        kv.init(REPORT, self._table)

    def _call_the_roll(self) -> None:
        present = torch.zeros(self.workers + 1, dtype=torch.int64)
        self.kv.init(ROLL_CALL, present)
        present[self.rank] = 1
        self.kv.push_pull(ROLL_CALL, present, out=present).wait()
        if not bool((present == 1).all()):
            raise SetupError(
                f"each rank must be started once, but ranks 0, 1, ... were started {present.tolist()} times"
            )

    def settings_from_ps(self, text: str | None) -> str:
        """The PS gives its text; everyone gets it."""
        data = torch.zeros(SETTINGS_BYTES, dtype=torch.uint8)
        if text is not None:
            raw = text.encode()
            if len(raw) > SETTINGS_BYTES:
                raise SetupError(f"the settings are {len(raw)} bytes, but at most {SETTINGS_BYTES} can be sent")
            data[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
        self._from_ps(SETTINGS, data)
        return bytes(data.tolist()).rstrip(b"\0").decode()

    def model_from_ps(self, vector: torch.Tensor) -> None:
        """Overwrites `vector` with the PS's; messages have its size from now on."""
        self._from_ps(MESSAGE, vector)

    def _from_ps(self, key: int, values: torch.Tensor) -> None:
        # Not by init alone, which gives the values of fptps's own rank 0: --rank may number otherwise.
        self.kv.init(key, values)
        if self.rank == 0:
            self.kv.push(key, values).wait()
        else:
            self.kv.skip(key).wait()
        self.kv.pull(key, out=values).wait()

    def exchange(self, message: torch.Tensor, report: Report) -> tuple[torch.Tensor, torch.Tensor]:
        """A worker's round: the sum of all messages, written over `message`, and the table of reports."""
        start = time.perf_counter()
        self.kv.push_pull(MESSAGE, message, out=message).wait(math.inf)
        self._table.zero_()
        self._table[self.rank - 1] = torch.tensor(
            report._replace(
                communication_s=time.perf_counter() - start,
                bytes_sent=message.nbytes + self._table.nbytes,
            ),
            dtype=torch.float64,
        )
        # A sum in which every worker filled its own row and left the others zero is a table.
        self.kv.push_pull(REPORT, self._table, out=self._table).wait(math.inf)
        return message, self._table

    def open_round(self) -> None:
        """The PS's part in the next round. Until it has done this, the workers' sums are not complete."""
        self._round = [self.kv.skip(MESSAGE), self.kv.skip(REPORT)]

    def collect(self, total: torch.Tensor) -> torch.Tensor:
        """The open round as the PS gets it: the sum of all messages in `total`; returns the table of reports."""
        for ticket in self._round:
            ticket.wait(math.inf)
        self.kv.pull(MESSAGE, out=total).wait()
        self.kv.pull(REPORT, out=self._table).wait()
        return self._table


def reports(table: torch.Tensor) -> list[Report]:
    """The rows of the table, by worker."""
    return [Report(int(row[0]), row[1], row[2], int(row[3])) for row in table.tolist()]
