"""A model seen as two vectors: what is trained, and the statistics that it keeps beside (batch normalisation)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class ModelVector:
    """Reads and writes a model's trained parameters and floating-point buffers, on whatever device they are.

    The vectors are on the CPU. Parameters are float32 there, or float64 where one of them is; buffers float64. Other
    parameters and buffers (frozen ones, counters) are the process's own. Invariant: the model's set of parameters
    stays as it is.
    """

    def __init__(self, model: nn.Module) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        if not self.params:
            raise ValueError("the model has no parameters to train")
        for p in self.params:
            if not p.is_floating_point():
                raise TypeError(f"a parameter of {p.dtype} cannot be averaged: floating-point numbers are expected")
        self.dtype = torch.float64 if any(p.dtype == torch.float64 for p in self.params) else torch.float32
        self.size = sum(p.numel() for p in self.params)
        self.buffers_size = sum(b.numel() for b in self._buffers)

    def read(self) -> torch.Tensor:
        """The parameters, (size,)."""
        return _read(self.params, self.dtype)

    def write(self, vector: torch.Tensor) -> None:
        """Sets the parameters."""
        _write(self.params, vector)

    def read_buffers(self) -> torch.Tensor:
        """The buffers, (buffers_size,)."""
        return _read(self._buffers, torch.float64)

    def write_buffers(self, vector: torch.Tensor) -> None:
        """Sets the buffers."""
        _write(self._buffers, vector)


def _read(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    parts = [t.detach().reshape(-1).to("cpu", dtype) for t in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)


@torch.no_grad()
def _write(tensors: Sequence[torch.Tensor], vector: torch.Tensor) -> None:
    for t in tensors:
        part, vector = vector[: t.numel()], vector[t.numel() :]
        t.copy_(part.view(t.shape))


def whole(model: nn.Module) -> torch.Tensor:
    """A copy of every byte of the model, (bytes,) uint8: frozen parameters and counters as well."""
    return torch.cat([_bytes(t.detach().cpu()) for t in (*model.parameters(), *model.buffers())])


@torch.no_grad()
def set_whole(model: nn.Module, content: torch.Tensor) -> None:
    """Sets the model to what whole() gave."""
    for t in (*model.parameters(), *model.buffers()):
        part, content = content[: t.nbytes], content[t.nbytes :]
        t.copy_(part.clone().view(t.dtype).view(t.shape))


def _bytes(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(-1).view(torch.uint8)
