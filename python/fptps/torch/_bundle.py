"""A parameter's place in a step, and the tensors that carry gradients: large ones alone, several small ones together.

A tensor costs CPU time however small it is. So small gradients share a tensor, in the order of the parameters'
definition, and it leaves when the last of them is there. A larger one travels alone: to copy it would cost more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from ..ticket import Ticket
from ._compression import Compressor

SMALL: Final = 128 << 10
"""The most bytes of a gradient that shares a tensor with others."""
LARGEST: Final = 4 * SMALL
"""The most bytes of that tensor."""


class Slot:
    """One parameter, and the way of its gradient in the current step."""

    def __init__(self, index: int, name: str, parameter: nn.Parameter, group: int) -> None:
        self.index, self.name, self.parameter, self.group = index, name, parameter, group
        self.bundle: Bundle
        self.priority = 0
        self.hooks: list[Any] = []
        self.pending: dict[str, Any] | None = None
        """The settings of its group at the step() whose update is to come; None: there is none to come."""
        self.clear()

    def clear(self) -> None:
        """Begins a new step."""
        self.ready = False
        """Whether its bundle has a gradient of it, to be sent or sent."""
        self.owed = False
        """Whether its part of the sum is still to be taken from its bundle."""
        self.passes = 0
        """Backward passes that have reached it."""
        self.gradient: torch.Tensor | None = None
        """What was sent and becomes the sum: the parameter's grad."""
        self.version: int | None = None
        """Of the gradient, which the program must not change before the sum is there; None: it may."""
        self.rest: torch.Tensor | None = None
        """What is still to be sent or gathered: of a second backward pass, or sparse."""
        self.base: torch.Tensor | None = None
        """The sum of what was sent before."""

    def check(self) -> None:
        """RuntimeError if the program has changed the gradient while its sum was under way."""
        gradient = self.gradient
        if gradient is None or self.version is None:
            return
        if self.parameter.grad is not gradient or gradient._version != self.version:
            raise RuntimeError(
                f"the gradient of {self.name} was changed while its sum was under way: call optimizer.synchronize() "
                "after backward() and before you clip, scale or replace gradients"
            )


class Bundle:
    """The gradients of one parameter, or of several, as one tensor of fptps.

    That of one parameter travels from and to the gradient's own memory, that of several by a copy.
    """

    def __init__(self, slots: Sequence[Slot], compression: Compressor, rank: int) -> None:
        self.slots = slots
        first = slots[0]
        self.name = first.name if len(slots) == 1 else f"{first.name} and {len(slots) - 1} more"
        self.sent = False
        """Whether this worker has contributed to the step's first round."""
        self.missing = 0
        """How many gradients it waits for: of the parameters that have hooks."""
        self.ticket: Ticket[Any] | None = None
        self._flat: torch.Tensor | None = None
        self._parts: list[torch.Tensor] = []
        self._received: Any = None
        if len(slots) > 1:
            sizes = [slot.parameter.numel() for slot in slots]
            self._flat = torch.zeros(sum(sizes), dtype=first.parameter.dtype, device=first.parameter.device)
            self._parts = [p.view(s.parameter.shape) for p, s in zip(self._flat.split(sizes), slots)]
        self.wire = compression.wire(first.parameter if self._flat is None else self._flat, self.name, rank)
        for slot in slots:
            slot.bundle = self

    def clear(self) -> None:
        """Begins a new step."""
        self.sent = False
        self.missing = 0
        for slot in self.slots:
            slot.clear()
            self.missing += bool(slot.hooks)

    @property
    def priority(self) -> int:
        """That of its most urgent parameter."""
        return max(slot.priority for slot in self.slots)

    @property
    def arrived(self) -> bool:
        """Whether its sum is here, if there is one to come; after Gradients.settle()."""
        return self.ticket is None or self.ticket.done()

    def encode(self, gradients: Sequence[torch.Tensor | None]) -> Any:
        """What is pushed for the gradients of its parameters; None: zeros. At least one is a gradient."""
        if self._flat is None:
            (gradient,) = gradients
            assert gradient is not None
            return self.wire.encode(gradient.data)
        if any(gradient is None for gradient in gradients):  # "None in" compares tensors, which is slow
            self._flat.zero_()
        _copy([(part, gradient) for part, gradient in zip(self._parts, gradients) if gradient is not None])
        return self.wire.encode(self._flat)

    def receive(self) -> None:
        """Waits for the sum, if it is under way, and writes it into the gradients that wait for it."""
        if self.ticket is not None:
            self._received = self.ticket.result(math.inf)
            self.ticket = None
            if self._flat is not None:
                self.wire.decode(self._received, self._flat)
        # Aliases with version counters of their own: what fptps writes is not the program's doing.
        if self._flat is None:
            (gradient,) = (slot.gradient for slot in self.slots)
            assert gradient is not None
            self.wire.decode(self._received, gradient.data)
        else:
            owed = zip(self.slots, self._parts)
            _copy([(s.gradient.data, part) for s, part in owed if s.owed and s.gradient is not None])
        for slot in self.slots:
            slot.owed = False


def _copy(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies the second tensor of each pair into the first."""
    torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])


def plan(slots: Sequence[Slot], compression: Compressor) -> list[list[int]]:
    """The indices of the parameters of each bundle: of small ones that are alike, one after the other but for others.

    Codes are made for each parameter alone: their steps fit values of one magnitude.
    """
    bundles: list[list[int]] = []
    filling: dict[object, tuple[list[int], int]] = {}  # by kind: the bundle that takes the next one, and its bytes
    for slot in slots:
        p = slot.parameter
        kind, nbytes = (p.dtype, p.device, p.requires_grad), p.numel() * p.element_size()
        bundle, size = filling.get(kind, ([], LARGEST))
        small = nbytes <= SMALL and not compression.bits
        if not small or size + nbytes > LARGEST:
            bundle, size = [], 0
            bundles.append(bundle)
        bundle.append(slot.index)
        if small:
            filling[kind] = bundle, size + nbytes
    return bundles
