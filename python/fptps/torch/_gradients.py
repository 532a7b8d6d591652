"""The exchange of gradients: each leaves when the backward pass has computed it, and comes back as the sum of all.

For a step every worker takes part in one round of each parameter that anybody has a gradient for. Who has one is not
known beforehand, as a model may use other parameters in each iteration and on each worker. So each step has a small
tensor more, the roll: every worker adds up, by parameter, whether it has sent a gradient, has more to send (after a
second backward pass), or has a sparse one. Its sum tells every worker where to skip, to send again, and to gather.
Gradients travel in bundles (see _bundle); a bundle takes part if one of its parameters does.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import numpy as np
import torch

from ..namespace import Namespace
from ..optim import Optimizer as Rule
from ..ticket import Ticket
from ..worker import KVWorker
from ._bundle import Bundle, Slot, plan
from ._calls import Op
from ._compression import Compressor

SENT, MORE, SPARSE = range(3)
"""The rows of the roll; before them it counts the workers that have joined (see fptps.torch.join)."""
URGENT: Final = 1
"""The priority of the roll. Gradients have 0 or less."""


class Gradients:
    """The gradients of one optimizer's parameters on their way.

    close() ends the sending of a step; then collect(slot) gives the sum of a parameter's gradients, and next_step(),
    with Bundle.clear(), begins the next one. finish(slot) is called where a backward pass reaches a parameter that is
    pending, drop() where the program has dropped gradients that were sent, start() before the first of a step is sent.

    With a rule the aggregators apply it to each sum, and send the new value of the parameter in its place.
    """

    def __init__(
        self,
        worker: KVWorker,
        tensors: Namespace,
        slots: Sequence[Slot],
        compression: Compressor,
        passes: int,
        op: Op,
        rule: Rule | None,
        finish: Callable[[Slot], None],
        drop: Callable[[], None],
        start: Callable[[], None],
    ) -> None:
        self.worker, self.slots = worker, list(slots)
        self.paused = False
        """Whether gradients stay where they are: in no_sync()."""
        self.open = False
        """Whether a gradient was sent in this step."""
        self.joined = 0
        """How many workers have joined, in the last roll."""
        self.tensors, self._roll = tensors.namespace("gradients"), tensors.namespace("roll")
        self._rule = rule
        self._passes, self._op = passes, op.operation
        self._finish, self._drop, self._start = finish, drop, start
        alone = [[slot.index] for slot in self.slots]
        own = alone if rule else plan(self.slots, compression)
        found = worker._collectives.allgather(own)
        self.workers = tuple(found)
        """The ranks of the workers that took part in the last roll."""
        indices = found[min(found)]  # frozen ones may differ between workers
        self.bundles = [Bundle([self.slots[index] for index in one], compression, worker.rank) for one in indices]
        if rule is None:
            self.tensors.init_all({bundle.name: bundle.wire.array for bundle in self.bundles})
        else:
            values = {slot.name: slot.bundle.wire.encode(slot.parameter.data) for slot in self.slots}
            self.tensors.init_all(values)
            self.tensors.set_optimizer(rule, values)
        self._rollcall = np.zeros(1 + 3 * len(self.slots), np.int32)
        self._roll.init("roll", self._rollcall)
        self._rolling: Ticket[Any] | None = None
        self._settled = False
        for slot in self.slots:
            self._attach(slot)

    def _attach(self, slot: Slot) -> None:
        """Hooks into the backward pass, unless the parameter is frozen, or hooked already."""
        if slot.hooks or not slot.parameter.requires_grad:
            return
        myself = weakref.ref(self)

        def before(gradient: torch.Tensor) -> None:
            own = myself()
            if own is not None:
                own._before(slot)

        def after(parameter: torch.Tensor) -> None:
            own = myself()
            if own is not None:
                own._after(slot)

        slot.bundle.missing += 1
        slot.hooks = [slot.parameter.register_hook(before), slot.parameter.register_post_accumulate_grad_hook(after)]

    def detach(self) -> None:
        """Removes the hooks."""
        for slot in self.slots:
            while slot.hooks:
                slot.hooks.pop().remove()

    def _before(self, slot: Slot) -> None:
        """A backward pass is about to add to the parameter's grad."""
        if slot.pending is not None:
            self._finish(slot)
        if slot.gradient is None:
            return
        if slot.parameter.grad is None:  # the program has dropped the gradients of a step that it does not take
            self._drop()
            return
        if slot.bundle.sent:
            self._set_aside(slot)
        else:  # it waits for other parameters, and goes with what is added now
            slot.check()
            slot.gradient, slot.version, slot.ready = None, None, False
            slot.bundle.missing += 1

    def _after(self, slot: Slot) -> None:
        """A backward pass has added to the parameter's grad."""
        if self.paused:
            return
        slot.passes += 1
        if slot.passes >= self._passes and not slot.ready and not _is_sparse(slot.parameter.grad):
            self._send(slot)

    def _send(self, slot: Slot) -> None:
        gradient = slot.parameter.grad
        assert gradient is not None
        if gradient.requires_grad:
            raise RuntimeError(
                f"the gradient of {slot.name} is part of a graph (create_graph=True), and its sum is not: use "
                "torch.autograd.grad(create_graph=True), or optimizer.no_sync() around that backward()"
            )
        if not self.open:
            self._start()
            self.open = True
        slot.gradient, slot.version, slot.ready = gradient, gradient._version, True
        bundle = slot.bundle
        bundle.missing -= bool(slot.hooks)
        if bundle.missing == 0 and not bundle.sent:
            self._push(bundle, [one.gradient for one in bundle.slots])

    def _push(self, bundle: Bundle, gradients: Sequence[torch.Tensor | None]) -> None:
        """Takes part in a round of a bundle with gradients of its parameters; None: zeros."""
        array = bundle.encode(gradients)
        bundle.ticket = self.tensors.push_pull(bundle.name, array, out=array, op=self._op, priority=bundle.priority)
        bundle.sent = True
        for slot, gradient in zip(bundle.slots, gradients):
            slot.owed = gradient is not None

    def _skip(self, bundle: Bundle) -> None:
        """Takes part in a round of a bundle without a gradient."""
        self.tensors.skip(bundle.name)
        bundle.ticket = self.tensors.pull(bundle.name, out=bundle.wire.empty())

    def _expect(self, slot: Slot) -> None:
        """Of the bundle's sum, this worker takes the parameter's part, to which it has contributed nothing."""
        slot.gradient, slot.version, slot.owed = torch.empty_like(slot.parameter, requires_grad=False), None, True

    def _set_aside(self, slot: Slot) -> None:
        """Keeps the sum of what was sent, so that what follows can be sent too."""
        if self._rule:
            self._refuse(slot)
        slot.check()
        sum_ = self._receive(slot)
        if sum_ is not None:
            slot.base = sum_ if slot.base is None else slot.base.add_(sum_)
        slot.gradient = slot.version = slot.parameter.grad = None

    def _receive(self, slot: Slot) -> torch.Tensor | None:
        if slot.owed:
            slot.bundle.receive()
        slot.version = None
        return slot.gradient

    def _refuse(self, slot: Slot) -> NoReturn:
        raise RuntimeError(
            f"ServerOptimizer: the gradient of {slot.name} is sparse, or of a second backward() before step(): the "
            "aggregators apply one dense gradient a step. Use no_sync() around all backward() but the last, or "
            "backward_passes_per_step; or DistributedOptimizer"
        )

    def fetch(self) -> None:
        """Gives the parameters the aggregators' values, after the worker's load()."""
        for slot in self.slots:
            received = self.tensors.pull(slot.name, out=slot.bundle.wire.empty()).result(math.inf)
            slot.bundle.wire.decode(received, slot.parameter.data)

    def close(self) -> None:
        """Sends what the backward passes have left, and the roll. Does not wait.

        RuntimeError names a parameter whose gradient the program has changed under way.
        """
        if self._rolling is not None:
            return
        self._rollcall[:] = 0
        rows = self._rollcall[1:].reshape(3, -1)
        for slot in self.slots:
            self._attach(slot)  # it may be frozen no more
            slot.check()
            gradient = slot.parameter.grad
            if gradient is not None and gradient is not slot.gradient:
                if self._rule and (_is_sparse(gradient) or slot.ready or slot.bundle.sent):
                    self._refuse(slot)
                if _is_sparse(gradient):
                    slot.rest = gradient
                    rows[SPARSE, slot.index] = 1
                elif slot.ready or slot.bundle.sent:
                    slot.rest = gradient
                    rows[MORE, slot.index] = 1
                else:
                    self._send(slot)
            rows[SENT, slot.index] = slot.ready
        for bundle in self.bundles:
            if not bundle.sent and any(slot.ready for slot in bundle.slots):
                self._push(bundle, [slot.gradient for slot in bundle.slots])
        self._rolling = self._call()
        self._settled = False

    def _call(self) -> Ticket[Any]:
        return self._roll.push_pull("roll", self._rollcall, out=self._rollcall, priority=URGENT)

    def settle(self) -> None:
        """Waits for the roll, and takes part where the others have gradients."""
        if self._rolling is None or self._settled:
            return
        self._rolling.result(math.inf)
        self._settled, self.workers = True, self._rolling.workers
        self.joined = int(self._rollcall[0])
        sent, more, sparse = self._rollcall[1:].reshape(3, -1)
        for bundle in self._of(sent):
            if not bundle.sent:
                self._skip(bundle)
        for index in np.flatnonzero(sent):
            if not self.slots[index].ready:
                self._expect(self.slots[index])
        for index in np.flatnonzero(sparse):
            self._gather(self.slots[index])
        for bundle in self._of(more):
            self._send_again(bundle, more)

    def _of(self, row: np.ndarray[Any, Any]) -> list[Bundle]:
        """The bundles of the parameters that are marked in a row of the roll."""
        return list(dict.fromkeys(self.slots[index].bundle for index in np.flatnonzero(row)))

    def _send_again(self, bundle: Bundle, more: np.ndarray[Any, Any]) -> None:
        """The second round of a step, for what came after the first was sent."""
        for slot in bundle.slots:
            if more[slot.index] and slot.gradient is not None:
                self._set_aside(slot)
            else:
                self._receive(slot)
        rests = [slot.rest for slot in bundle.slots]
        if any(rest is not None for rest in rests):
            self._push(bundle, rests)
        else:
            self._skip(bundle)
        for slot in bundle.slots:
            if slot.rest is not None:
                slot.gradient, slot.rest = slot.rest, None
            elif more[slot.index]:
                self._expect(slot)

    def _gather(self, slot: Slot) -> None:
        """The sum of sparse gradients: all workers' rows, in the order of ranks."""
        rest, slot.rest = slot.rest, None
        own = None
        if rest is not None:
            rest = rest.coalesce()
            own = rest.indices().cpu(), rest.values().cpu()
        all_parts = self.worker.allgather_object(own)
        found = [part for part in all_parts if part is not None]
        indices, values = (torch.cat(parts, dim=at) for at, parts in zip((1, 0), zip(*found)))
        p = slot.parameter
        sum_ = torch.sparse_coo_tensor(indices, values, p.shape, check_invariants=True).coalesce()
        if self._op == "mean":
            sum_ = sum_ / len(all_parts)
        slot.gradient, slot.version = sum_.to(p.device), None

    def collect(self, slot: Slot) -> torch.Tensor | None:
        """Waits for the sum of a parameter's gradients; None if no worker has one. After close()."""
        self.settle()
        sum_ = self._receive(slot)
        if slot.base is not None and sum_ is not None:
            sum_, slot.base = slot.base.add_(sum_), None
            slot.gradient = sum_
        return sum_

    def complete(self) -> None:
        """Waits for all sums of this step."""
        self.close()
        for slot in self.slots:
            self.collect(slot)

    def next_step(self) -> None:
        """Begins the next step, after the sums of this one were collected."""
        self.open, self._rolling = False, None

    def stand_in(self) -> Ticket[Any]:
        """For a worker that has joined: its part in the others' next step begins with a roll."""
        self._rollcall[:] = 0
        self._rollcall[0] = 1
        return self._call()

    def follow(self, roll: Ticket[Any]) -> bool:
        """After stand_in()'s ticket: takes part in that step without gradients; False if all workers have joined."""
        self.workers = roll.workers
        self.joined = int(self._rollcall[0])
        sent, more, sparse = self._rollcall[1:].reshape(3, -1)
        for bundle in self._of(sent):
            self.tensors.skip(bundle.name)
        for index in np.flatnonzero(sparse):
            self._gather(self.slots[index])
            self.slots[index].clear()
        for bundle in self._of(more):
            self.tensors.skip(bundle.name)
        return self.joined < len(self.workers)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Within it backward passes send nothing."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before


def _is_sparse(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and gradient.layout is not torch.strided
