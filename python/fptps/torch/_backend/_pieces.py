"""How a tensor of any length becomes a few tensors of set lengths, which are declared once.

fptps sums tensors that all workers have declared, and a declaration is an exchange with the scheduler. A program may
sum tensors of ever new lengths. So a tensor is cut into pieces whose lengths are powers of two: those of whole packets
are the binary digits of its length, and what is left of a packet is padded to the next power of two. There are few such
lengths, whatever the program does, and a length that was met once needs no declaration any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

PACKET: Final = 1 << 14
"""Bytes of a packet of the core: shorter pieces of one tensor would each fill a packet of their own."""

AHEAD: Final = 1 << 23
"""Bytes of pieces of one length that may be under way, in several operations; at least two pieces, at most MOST."""

MOST: Final = 16


class Piece(NamedTuple):
    """A part of a tensor, as numbers of elements."""

    begin: int
    end: int
    size: int
    """Of the declared tensor: a power of two, at least end - begin."""


def cut(count: int, itemsize: int, largest: int) -> Iterator[Piece]:
    """Cuts a tensor of count elements, of itemsize bytes each, into pieces of at most largest bytes."""
    packet = PACKET // itemsize
    begin, size = 0, largest // itemsize
    while count - begin >= packet:
        while size > count - begin:
            size //= 2
        yield Piece(begin, begin + size, size)
        begin += size
    if begin < count:
        yield Piece(begin, count, 1 << (count - begin - 1).bit_length())


def slots(nbytes: int) -> int:
    """How many tensors are declared for pieces of so many bytes: operations in a row take one after the other, so that
    one can begin while the one before is under way."""
    return max(2, min(MOST, AHEAD // nbytes))
