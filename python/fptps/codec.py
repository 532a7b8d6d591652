"""Quantised tensors: float32 values as linear codes of 2 to 16 bits, which travel in their place and are summed.

    quantizer = Quantizer(bits=8)
    codes = quantizer.encode(gradient, seed=step)
    kv.init(key, codes)  # once, on every worker
    kv.push_pull(key, codes, out=codes).wait()
    total = codes.decode()

A sum is quantised again, once, on the node that makes it, and every worker receives the same bytes. The rounding has no
bias: the expectation of what a value decodes to is the value itself (Alistarh et al., QSGD, 2017, section 3.1, with
the range in place of the norm). Blocks of 512 bytes are quantised each by itself.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Final, NamedTuple

import numpy as np

from .arrays import BLOCK_TYPES, FLOAT32, MIN_BITS, Place, locate

BLOCK_BYTES: Final = 512


class Codes:
    """A row of values as codes. KVWorker's methods take it as an array, to read and to receive into."""

    def __init__(self, bits: int, count: int) -> None:
        self.bits = bits
        self.count = count
        """The number of values."""
        self.blocks = np.zeros(-(-count // block_values(bits)) * BLOCK_BYTES, np.uint8)
        """The bytes that travel."""

    @property
    def nbytes(self) -> int:
        """What travels, in bytes."""
        return self.blocks.nbytes

    def decode(self, out: Any = None) -> Any:
        """The values: in out, a C-contiguous float32 array or CPU tensor of so many, or a new numpy array (count,)."""
        from . import _core

        if out is None:
            out = np.empty(self.count, np.float32)
        place = _float32s(out, write=True)
        if place.nbytes != 4 * self.count:
            raise ValueError(f"{self.count} values do not fit into {place.nbytes // 4}")
        _core.dequantise(self.blocks.ctypes.data, self.nbytes, place.address, self.count, self.bits)
        return out

    def fptps_place(self, write: bool) -> Place:
        """How KVWorker finds the codes (see arrays.locate)."""
        place = locate(self.blocks, write)
        return place._replace(dtype=BLOCK_TYPES + self.bits - MIN_BITS)

    def fptps_like(self) -> Codes:
        """A new one of the same size and width (see arrays.maker)."""
        return Codes(self.bits, self.count)


class Quantizer(NamedTuple):
    """How values become codes. ValueError if that makes no sense."""

    bits: int = 8
    """2 to 16: there are 2**bits - 1 codes, symmetric about 0."""
    range: float | None = None
    """The largest magnitude that has a code; values beyond it become it. None: of each block its own largest."""

    def encode(self, values: Any, seed: int, out: Codes | None = None) -> Codes:
        """The codes of float32 values (C-contiguous, an array or CPU tensor of any shape), which are only read.

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
    """How many values a block of 512 bytes holds. ValueError for a width that there is not."""
    from . import _core

    return int(_core.block_values(bits))


def _float32s(array: Any, write: bool) -> Place:
    place = locate(array, write)
    if place.dtype != FLOAT32:
        raise TypeError("float32 values are expected")
    return place
