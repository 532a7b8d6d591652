"""A round's messages: the updates and what goes with them, summed over the workers by fptps while they compute."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from typing import Any, Final

import torch

from ...codec import Codes
from ...errors import MismatchError
from ...worker import KVWorker
from .algorithm import Algorithm

KEYS: Final = 2
"""How many keys an exchange uses, from its first one on."""


class Exchange:
    """One process's part in the rounds: it sends its update, or skips the round, and gets the sum of all updates.

    Invariant: a worker has at most one update under way, and what is in `sent` stays as it is until its sum is here.
    """

    def __init__(
        self, kv: KVWorker, key: int, size: int, dtype: torch.dtype, extras: int, algorithm: Algorithm
    ) -> None:
        self._kv = kv
        self._update_key, self._extra_key = key, key + 1
        self._quantizer = algorithm.quantizer
        self._residual = torch.zeros(size, dtype=dtype) if algorithm.error_feedback else None
        if self._quantizer is not None and dtype != torch.float32:
            raise TypeError(f"updates of {dtype} cannot be quantised: a model of float32 is expected")
        self.total = torch.zeros(size, dtype=dtype)
        self.total_extra = torch.zeros(extras, dtype=torch.float64)
        self._received: Any = Codes(self._quantizer.bits, size) if self._quantizer else self.total
        self.sent: tuple[Any, torch.Tensor] | None = None
        """The update (codes or a tensor) and the extras that are under way."""
        self._tickets: list[Any] = []
        self._skipped = False
        kv.init(self._update_key, self._received)
        kv.init(self._extra_key, self.total_extra)
        self.bytes = self._received.nbytes + self.total_extra.nbytes
        """The size of a round's message, and of its sum: without headers."""
        self.waited_s = 0.0
        self.under_way_s = 0.0

    @property
    def in_flight(self) -> bool:
        """Whether a round is under way."""
        return bool(self._tickets)

    def send(self, update: torch.Tensor, extra: torch.Tensor, seed: int) -> None:
        """Starts a round with this worker's update, (size,), and what is summed beside it, (extras,) float64."""
        if self._quantizer is None:
            self.resend(update, extra)
            return
        if self._residual is not None:
            update = update + self._residual
        codes = self._quantizer.encode(update, seed)
        if self._residual is not None:
            torch.sub(update, codes.decode(torch.empty_like(update)), out=self._residual)
        self.resend(codes, extra)

    def resend(self, message: Any, extra: torch.Tensor) -> None:
        """Starts a round with a message that is made already."""
        self.sent = (message, extra)
        self._start = time.perf_counter()
        self._tickets = [
            self._kv.push_pull(self._extra_key, extra, out=self.total_extra, priority=1),
            self._kv.push_pull(self._update_key, message, out=self._received),
        ]

    def skip(self) -> None:
        """Starts a round to which this process contributes nothing: without it the others' sums are not complete."""
        self._start = time.perf_counter()
        self._skipped = True
        self._tickets = [self._kv.skip(self._extra_key), self._kv.skip(self._update_key)]

    def arrived(self) -> bool:
        """Whether the sums of the round under way are here. Never waits."""
        return all(ticket.done() for ticket in self._tickets)

    def collect(self) -> None:
        """Ends the round: waits for the sums, without a bound of time, and leaves them in total and total_extra."""
        start = time.perf_counter()
        for ticket in self._tickets:
            ticket.wait(math.inf)
        if self._skipped:
            self._kv.pull(self._extra_key, out=self.total_extra).wait()
            self._kv.pull(self._update_key, out=self._received).wait()
        self.waited_s = time.perf_counter() - start
        self.under_way_s = time.perf_counter() - self._start
        self._tickets, self.sent, self._skipped = [], None, False
        if self._quantizer is not None:
            self._received.decode(self.total)

    def state_dict(self) -> dict[str, Any]:
        """What is left of earlier rounds, and what is under way."""
        message = None
        if self.sent is not None:
            update, extra = self.sent
            message = {
                "update": torch.from_numpy(update.blocks.copy()) if isinstance(update, Codes) else update.clone(),
                "extra": extra.clone(),
            }
        return {"residual": None if self._residual is None else self._residual.clone(), "message": message}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to where state_dict() was called: what was under way then is sent again."""
        if self._residual is not None:
            self._residual.copy_(state["residual"])
        message = state["message"]
        if message is None:
            return
        update = message["update"].clone()
        if self._quantizer is not None:
            codes = Codes(self._quantizer.bits, len(self.total))
            codes.blocks[:] = update.numpy()
            update = codes
        self.resend(update, message["extra"].clone())


def agree(kv: KVWorker, key: int, facts: Mapping[str, object]) -> None:
    """Returns when all workers have called it with the same facts, by their repr.

    MismatchError, in all of them, names the workers that differ from worker 0, and in what.
    """
    table = torch.zeros(kv.num_workers, len(facts), dtype=torch.int64)
    table[kv.rank] = torch.tensor([_fingerprint(fact) for fact in facts.values()])
    # Every worker fills its own row and leaves the others zero: the sum is the whole table.
    kv.push_pull(key, table, out=table).wait()
    wrong = [
        f"worker {rank} has another {name} than worker 0"
        for column, name in enumerate(facts)
        for rank in (table[:, column] != table[0, column]).nonzero().flatten().tolist()
    ]
    if wrong:
        own = "; ".join(f"{name}: {fact}" for name, fact in facts.items())
        raise MismatchError(f"{', '.join(wrong)}. All have to have the same. Here, at worker {kv.rank}: {own}")


def _fingerprint(fact: object) -> int:
    return seed_of(repr(fact)) >> 1


def seed_of(*parts: object) -> int:
    """64 bits that depend on all parts, the same in every process."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
