"""State: what a worker that comes later needs of the others, and the place where it is admitted."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn

from ._optimizer import DistributedOptimizer
from ._process import current
from ._server import ServerOptimizer


class State:
    """The state of a training, which workers that come later (FPTPS_RECOVERY=1) take over.

        model, optimizer = fptps.prepare(model, optimizer)
        state = fptps.State(model, optimizer, scheduler=scheduler, step=0)
        while state.step < 1000:
            state.admit()
            ...
            state.step += 1

    Further values, by name, become attributes. Of a value that has state_dict() and load_state_dict(), as learning-rate
    schedulers have, that state is handed over, else the value itself, as pickle takes it.
    """

    def __init__(self, model: nn.Module, optimizer: DistributedOptimizer, **values: Any) -> None:
        if not isinstance(optimizer, DistributedOptimizer):
            raise TypeError(f"State: a DistributedOptimizer is expected, as prepare() makes it, not {optimizer!r}")
        on_servers = isinstance(
            optimizer, ServerOptimizer
        )  # whose state they keep: only learning rates are handed over
        self._parts: dict[str, Any] = {"model": model, "optimizer": optimizer.optimizer if on_servers else optimizer}
        self._names = list(values)
        if taken := [name for name in values if hasattr(self, name)]:
            raise ValueError(f"State: {taken[0]!r} cannot be the name of a value")
        vars(self).update(values)

    def admit(self) -> bool:
        """The place where workers that come later are admitted: see KVWorker.admit().

        All workers call it again and again, at the beginning of a step or an epoch, not between backward() and step().
        While nobody waits, it does nothing. Returns whether workers were admitted: optimizer.workers has them then, and
        this worker, if it is one of them, has the state of the others.
        """
        process = current()
        optimizers = process.living()
        if any(optimizer.under_way for optimizer in optimizers):
            raise RuntimeError("admit() between backward() and step(): take the step first, or zero_grad()")
        admitted = process.worker.admit(self._pack)
        if admitted is None:
            return False
        if admitted.state is not None:
            self._unpack(admitted.state)
        for optimizer in optimizers:
            optimizer.admit(admitted.workers)
        return True

    def _pack(self) -> bytes:
        process = current()
        process.finish()
        values = {name: getattr(self, name) for name in self._names}
        packed = {name: part.state_dict() for name, part in (self._parts | _with_state(values)).items()}
        plain = {name: value for name, value in values.items() if name not in packed}
        memory = io.BytesIO()
        torch.save((packed, plain, [optimizer.steps for optimizer in process.living()]), memory)
        return memory.getvalue()

    def _unpack(self, content: bytes) -> None:
        packed, plain, steps = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
        own = self._parts | _with_state({name: getattr(self, name) for name in self._names})
        if sorted(packed) != sorted(own) or sorted(packed | plain) != sorted([*self._parts, *self._names]):
            theirs, mine = sorted(packed | plain), sorted({*own, *self._names})
            raise ValueError(f"State: another worker has the values {theirs}, this one {mine}")
        for name, part in own.items():
            part.load_state_dict(packed[name])
        vars(self).update(plain)
        for optimizer, count in zip(current().living(), steps):
            optimizer.steps = count


def _with_state(values: dict[str, Any]) -> dict[str, Any]:
    """Those that have a state of their own."""
    return {name: value for name, value in values.items() if hasattr(value, "load_state_dict")}
