"""A model's tensors as vectors: its trained parameters, and its statistics (of batch normalisation)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Vector:
    """Some of a model's tensors, on any device, read and written as one vector, (size,), on the CPU.

    dtype: of the vector. The tensors remain the model's: nothing here replaces them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        self.size = sum(t.numel() for t in tensors)
        self._tensors = tensors
        self._dtype = dtype

    def read(self) -> torch.Tensor:
        """A copy of their values, (size,)."""
        parts = [t.detach().reshape(-1).to("cpu", self._dtype) for t in self._tensors]
        return torch.cat(parts) if parts else torch.empty(0, dtype=self._dtype)

    @torch.no_grad()
    def write(self, content: torch.Tensor) -> None:
        """Copies content, (size,), into them."""
        for t in self._tensors:
            part, content = content[: t.numel()], content[t.numel() :]
            t.copy_(part.view(t.shape))


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters with requires_grad, at least one. Frozen parameters are not exchanged."""
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        raise ValueError("the model has no parameters to train")
    for p in params:
        if not p.is_floating_point():
            raise TypeError(f"a parameter of {p.dtype} cannot be averaged: floating-point numbers are expected")
    return params


def exact_dtype(params: Sequence[torch.Tensor]) -> torch.dtype:
    """The dtype in which they are summed: float64 if one of them is float64, else float32."""
    return torch.float64 if any(p.dtype == torch.float64 for p in params) else torch.float32


def statistics(model: nn.Module) -> list[torch.Tensor]:
    """The floating-point buffers. Other buffers (counters) are not exchanged."""
    return [b for b in model.buffers() if b.is_floating_point()]


def whole(model: nn.Module) -> torch.Tensor:
    """A copy of every byte of the model, (bytes,) uint8: frozen parameters and counters as well."""
    return torch.cat([_bytes(t.detach().cpu()) for t in (*model.parameters(), *model.buffers())])


@torch.no_grad()
def set_whole(model: nn.Module, content: torch.Tensor) -> None:
    """Sets the model to the values of whole()."""
    for t in (*model.parameters(), *model.buffers()):
        part, content = content[: t.nbytes], content[t.nbytes :]
        t.copy_(part.clone().view(t.dtype).view(t.shape))


def _bytes(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(-1).view(torch.uint8)
