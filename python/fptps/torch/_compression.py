"""How the values of a tensor travel: as they are, as 16-bit floats, or as codes of 8 or 4 bits."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import torch

from ..codec import Codes, Quantizer


class Compressor(NamedTuple):
    """One way to send values; Compression has all of them."""

    name: str
    dtype: torch.dtype | None = None
    """The float that travels in the place of a wider one."""
    bits: int = 0
    """The width of the codes that travel in the place of float32 values; 0: none."""

    def wire(self, like: torch.Tensor, name: str, rank: int) -> Wire:
        """How tensors like this one travel. name and rank: no two wires round alike."""
        if self.bits and like.dtype == torch.float32:
            wire = Coded(like, self.bits, f"{name} {rank}")
            if wire.array.nbytes < like.nbytes:
                return wire
        elif self.dtype is not None and like.is_floating_point() and like.element_size() > self.dtype.itemsize:
            return Rounded(like, self.dtype)
        return Plain(like)


class Compression:
    """What travels in the place of gradients: less bytes for less precision.

    - none: the values themselves.
    - fp16, bf16: each value rounded to 16 bits. The sum is made in float32 and rounded once more.
    - int8, int4: codes of 8 or 4 bits for float32 values, rounded at random without bias (`fptps.codec`). The sum is
      quantised once more. In a DistributedOptimizer a worker adds the rounding error of its gradient to its next
      gradient (error feedback; Karimireddy et al., ICML 2019); that error is in no checkpoint. Tensors that codes would
      not make smaller, and other dtypes, travel as they are.
    """

    none: Final = Compressor("none")
    fp16: Final = Compressor("fp16", dtype=torch.float16)
    bf16: Final = Compressor("bf16", dtype=torch.bfloat16)
    int8: Final = Compressor("int8", bits=8)
    int4: Final = Compressor("int4", bits=4)


class Wire:
    """The way of one tensor's values over the network. Between encode() and the end of the ticket, array is in use."""

    array: Any
    """What is declared."""

    def encode(self, values: torch.Tensor) -> Any:
        """What is pushed, and received into, for values of the shape and dtype of the tensor."""
        raise NotImplementedError

    def empty(self) -> Any:
        """What to receive into where there are no values to push."""
        return self.array

    def decode(self, received: Any, out: torch.Tensor) -> None:
        """Writes what was received, encode()'s or empty()'s result, into out."""
        raise NotImplementedError


class Plain(Wire):
    """The values themselves: a dense CPU tensor's own memory, and a copy of any other."""

    def __init__(self, like: torch.Tensor) -> None:
        self._like = like.detach()
        dense = like.is_cpu and like.numel() == _span(like)
        self.array = self._like if dense else torch.empty(like.shape, dtype=like.dtype)
        self._buffer: torch.Tensor | None = None

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        if values.is_cpu and values.stride() == self.array.stride():
            return values
        return self.empty().copy_(values)

    def empty(self) -> torch.Tensor:
        if self._buffer is None:
            pinned = self._like.is_cuda
            self._buffer = torch.empty_like(self.array, device="cpu", pin_memory=pinned, requires_grad=False)
        return self._buffer

    def decode(self, received: torch.Tensor, out: torch.Tensor) -> None:
        if received.data_ptr() != out.data_ptr():
            out.copy_(received)


class Rounded(Wire):
    """Values as narrower floats."""

    def __init__(self, like: torch.Tensor, dtype: torch.dtype) -> None:
        self.array: torch.Tensor = torch.empty(like.shape, dtype=dtype)

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        self.array.copy_(values)
        return self.array

    def decode(self, received: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(received)


class Coded(Wire):
    """float32 values as codes, with error feedback."""

    def __init__(self, like: torch.Tensor, bits: int, name: str) -> None:
        self._quantizer = Quantizer(bits)
        self.array: Codes = Codes(bits, like.numel())
        self._residual = torch.zeros(like.numel())
        self._decoded = torch.empty(like.numel())
        self._name, self._round = name, 0

    def encode(self, values: torch.Tensor) -> Codes:
        self._residual += values.detach().reshape(-1).cpu()
        self._round += 1
        self._quantizer.encode(self._residual, _seed(self._name, self._round), out=self.array)
        if bool(torch.isfinite(self._residual).all()):
            self._residual -= self.array.decode(self._decoded)
        else:  # the codes are NaN, as the gradient is: the next one begins anew
            self._residual.zero_()
        return self.array

    def decode(self, received: Codes, out: torch.Tensor) -> None:
        received.decode(self._decoded)
        out.copy_(self._decoded.view(out.shape))


def _span(tensor: torch.Tensor) -> int:
    """The elements between the first and the last one in memory, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0


def _seed(name: str, number: int) -> int:
    """64 bits that differ between tensors, workers and rounds."""
    return int.from_bytes(hashlib.blake2b(f"{name} {number}".encode(), digest_size=8).digest(), "little")
