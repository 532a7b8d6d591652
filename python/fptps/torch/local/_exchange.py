"""The messages of a round: updates, and values that go with them, summed over the workers while they compute."""

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
from ._algorithm import Algorithm

KEYS: Final = 2
"""The number of keys that an exchange uses, from its first key on."""


class Exchange:
    """One process's side of the rounds: it sends its update, or skips the round, and receives the sum of all updates.

    Invariant: a worker has at most one update in flight; until its sum has arrived `sent` is not written to.
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
        """The update (codes or a tensor) and the extras that are in flight."""
        self._tickets: list[Any] = []
        self._skipped = False
        kv.init_all({self._update_key: self._received, self._extra_key: self.total_extra})
        self.bytes = self._received.nbytes + self.total_extra.nbytes
        """Bytes of a round's message, and of its sum, without headers."""
        self.waited_s = 0.0
        self.in_flight_s = 0.0

    @property
    def in_flight(self) -> bool:
        """Whether this process has started a round that it has not collected yet."""
        return bool(self._tickets)

    def send(self, update: torch.Tensor, extra: torch.Tensor, seed: int) -> None:
        """Starts a round with this worker's update, (size,), and extra values to be summed, (extras,) float64."""
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
        """Starts a round with an update that is encoded already: codes, or (size,)."""
        self.sent = (message, extra)
        self._start = time.perf_counter()
        self._tickets = [
            self._kv.push_pull(self._extra_key, extra, out=self.total_extra, priority=1),
            self._kv.push_pull(self._update_key, message, out=self._received),
        ]

    def skip(self) -> None:
        """Starts a round without a contribution. The others' sums need it: they wait for every process."""
        self._start = time.perf_counter()
        self._skipped = True
        self._tickets = [self._kv.skip(self._extra_key), self._kv.skip(self._update_key)]

    def arrived(self) -> bool:
        """Whether the sums of the round have arrived. Never waits."""
        return all(ticket.done() for ticket in self._tickets)

    def collect(self) -> None:
        """Ends the round: waits for the sums, for as long as it takes, and leaves them in total and total_extra."""
        start = time.perf_counter()
        for ticket in self._tickets:
            ticket.result(math.inf)
        if self._skipped:
            self._kv.pull(self._extra_key, out=self.total_extra).result()
            self._kv.pull(self._update_key, out=self._received).result()
        self.waited_s = time.perf_counter() - start
        self.in_flight_s = time.perf_counter() - self._start
        self._tickets, self.sent, self._skipped = [], None, False
        if self._quantizer is not None:
            self._received.decode(self.total)

    def state_dict(self) -> dict[str, Any]:
        """The quantisation error of earlier rounds, and the message in flight."""
        message = None
        if self.sent is not None:
            update, extra = self.sent
            message = {
                "update": torch.from_numpy(update.blocks.copy()) if isinstance(update, Codes) else update.clone(),
                "extra": extra.clone(),
            }
        return {"residual": None if self._residual is None else self._residual.clone(), "message": message}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state of state_dict(), and sends a message that was in flight again."""
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


def agree(kv: KVWorker, facts: Mapping[str, object]) -> None:
    """Returns when all workers have called it with the same facts, by their repr.

    MismatchError, in all of them, names the workers that differ from worker 0, and the differences.
    """
    found = kv._collectives.allgather({name: repr(fact) for name, fact in facts.items()})
    first = min(found)
    wrong = [
        f"worker {rank} has another {name} than worker {first}"
        for name in facts
        for rank, theirs in found.items()
        if theirs[name] != found[first][name]
    ]
    if wrong:
        own = "; ".join(f"{name}: {fact}" for name, fact in facts.items())
        raise MismatchError(f"{', '.join(wrong)}. All have to have the same. Here, at worker {kv.rank}: {own}")


def seed_of(*parts: object) -> int:
    """64 bits that depend on all parts, the same in every process."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
