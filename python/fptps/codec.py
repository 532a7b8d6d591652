"""Quantised tensors: linear codes of 2 to 16 bits, which are sent and summed in the place of float32 values.

    quantizer = Quantizer(bits=8)
    codes = quantizer.encode(gradient, seed=step)
    kv.init(key, codes)  # once, on every worker
    kv.push_pull(key, codes, out=codes).result()
    total = codes.decode()

The aggregator adds the values in float32 and quantises the sum once; every worker receives the same bytes. Rounding is
stochastic and without bias: the expectation of a decoded value is the value itself (Alistarh et al., QSGD, 2017,
section 3.1, with the range instead of the norm). Blocks of 512 bytes are quantised separately.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Final, NamedTuple

import numpy as np

from ._arrays import BLOCK_TYPES, FLOAT32, MIN_BITS, Place, locate, locate_contiguous

__all__ = ["Codes", "Quantizer"]

BLOCK_BYTES: Final = 512


class Codes:
    """Quantised values. KVWorker's methods accept it wherever they accept an array, to push and to receive into."""

    def __init__(self, bits: int, count: int) -> None:
        self.bits = bits
        self.count = count
        """The number of values."""
        self.blocks = np.zeros(-(-count // block_values(bits)) * BLOCK_BYTES, np.uint8)
        """The encoded bytes, which are sent."""

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, which are sent."""
        return self.blocks.nbytes

    def decode(self, out: Any = None) -> Any:
        """Returns the values, in out (C-contiguous float32, an array or CPU tensor) or in a new array. Both have count
        elements."""
        from . import _core

        if out is None:
            out = np.empty(self.count, np.float32)
        place = _float32s(out, write=True)
        if place.nbytes != 4 * self.count:
            raise ValueError(f"{self.count} values do not fit into {place.nbytes // 4}")
        _core.dequantise(self.blocks.ctypes.data, self.nbytes, place.address, self.count, self.bits)
        return out

    def fptps_place(self, write: bool) -> Place:
        """The memory of the codes, for KVWorker (see _arrays.locate)."""
        place = locate(self.blocks, write)
        return place._replace(dtype=BLOCK_TYPES + self.bits - MIN_BITS, shape=(self.count,))

    def fptps_like(self) -> Codes:
        """A new object of the same size and width (see _arrays.maker)."""
        return Codes(self.bits, self.count)


class Quantizer(NamedTuple):
    """Encodes values as codes. encode() raises ValueError for invalid bits or range."""

    bits: int = 8
    """2 to 16: there are 2**bits - 1 codes, symmetric about 0."""
    range: float | None = None
    """The largest magnitude that can be encoded; values beyond it are clipped.

    None: each block uses its own largest.
    """

    def encode(self, values: Any, seed: int, out: Codes | None = None) -> Codes:
        """Returns the codes of float32 values: a C-contiguous array or CPU tensor of any shape. out is reused if given.

        The same values and seed (64 bits) give the same codes. A block with a value that is not finite decodes to NaN.
        """
        from . import _core

        place = _float32s(values, write=False)
        count = place.nbytes // 4
        if out is None:
            out = Codes(self.bits, count)
        elif (out.bits, out.count) != (self.bits, count):
            raise ValueError(f"{count} values of {self.bits} bits do not fit into {out.count} of {out.bits}")
        stated = 0.0 if self.range is None else self.range
        if not 0 <= stated < 3.4e38 or (self.range is not None and struct.pack("f", stated) == bytes(4)):
            raise ValueError(f"range={self.range}: a number above 0, or None for each block's own, is expected")
        (stated_bits,) = struct.unpack("I", struct.pack("f", stated))
        seed = (seed + 2**63) % 2**64 - 2**63  # as the core's signed integer
        _core.quantise(out.blocks.ctypes.data, out.nbytes, place.address, count, self.bits, stated_bits, seed)
        return out


@functools.lru_cache(maxsize=16)
def block_values(bits: int) -> int:
    """The number of values in a block of 512 bytes. ValueError for an unsupported width."""
    from . import _core

    return int(_core.block_values(bits))


def _float32s(array: Any, write: bool) -> Place:
    place = locate_contiguous(array, write)
    if place.dtype != FLOAT32:
        raise TypeError("float32 values are expected")
    return place
