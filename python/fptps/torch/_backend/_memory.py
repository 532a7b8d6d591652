"""The memory of an operation's tensors, as lists of elements or bytes of the CPU's memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..._arrays import NAMES

SUMMABLE = {getattr(torch, name) for name in NAMES if isinstance(getattr(torch, name, None), torch.dtype)}


class Memory:
    """Gives flat CPU memory for tensors: their own where that is possible, else copies, which restore() writes back.

    A copy is needed for tensors of another device (staging), and for those whose elements have gaps or another order
    than C's.
    """

    def __init__(self) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Flat memory with a tensor's values, which may be the tensor's own."""
        return _plain(tensor).cpu().contiguous().view(-1)

    def change(self, tensor: torch.Tensor) -> torch.Tensor:
        """Flat memory with a tensor's values. What is written there becomes the tensor's."""
        flat = self.read(tensor)
        if flat.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            self._copies.append((tensor.detach(), flat))
        return flat

    def restore(self) -> None:
        """Writes the copies back, once the operation has ended."""
        for tensor, flat in self._copies:
            tensor.copy_(flat.view(tensor.shape))


def bytes_of(flat: torch.Tensor) -> torch.Tensor:
    """The bytes of a flat tensor, in place."""
    return flat.view(torch.uint8)


def one(tensors: Sequence[torch.Tensor], call: str) -> torch.Tensor:
    """The only tensor of a list: other backends take one for each of a process's devices."""
    if len(tensors) != 1:
        raise ValueError(f"{call}: {len(tensors)} tensors: fptps takes one from a process")
    return tensors[0]


def same(tensors: Sequence[torch.Tensor], like: torch.Tensor, call: str) -> None:
    """ValueError unless all tensors have the dtype of another one, and its number of elements."""
    for index, tensor in enumerate(tensors):
        if tensor.dtype != like.dtype or tensor.numel() != like.numel():
            raise ValueError(
                f"{call}: tensor {index} has {tensor.numel()} elements of {tensor.dtype}, and {like.numel()} of "
                f"{like.dtype} are expected"
            )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"a tensor of layout {tensor.layout}: fptps sums dense ones only: pass tensor.to_dense()"
        )
    return tensor.detach()
