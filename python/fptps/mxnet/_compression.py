"""How the values of a tensor travel: as they are, as 16-bit floats, or as codes of 8 or 4 bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..codec import Codes, Quantizer

Values = np.ndarray[Any, Any]


class Plain:
    """The values themselves, from where they are to where they shall be."""

    array: Any = None
    """What is declared in the place of the tensor; None: the tensor itself, and nothing has to be decoded."""

    def encode(self, values: Values) -> Any:
        """What is pushed for values."""
        return values

    def into(self, out: Values) -> Any:
        """The array to receive into."""
        return out

    def decode(self, out: Values) -> None:
        """Writes what was received into out. Not called where array is None."""


class Half(Plain):
    """Values rounded to float16."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.array = np.empty(shape, np.float16)

    def encode(self, values: Values) -> Values:
        np.copyto(self.array, values, casting="same_kind")
        return self.into(values)

    def into(self, out: Values) -> Values:
        array: Values = self.array
        return array

    def decode(self, out: Values) -> None:
        np.copyto(out, self.array)


class Coded(Plain):
    """float32 values as codes, with error feedback: the rounding error of a gradient is added to the next one."""

    def __init__(self, shape: tuple[int, ...], bits: int, name: str) -> None:
        self._quantizer = Quantizer(bits)
        self._residual = np.zeros(shape, np.float32)
        self._decoded = np.empty(shape, np.float32)
        self.array = Codes(bits, self._residual.size)
        self._name, self._round = name, 0

    def encode(self, values: Values) -> Codes:
        self._residual += values
        self._round += 1
        digest = hashlib.blake2b(f"{self._name} {self._round}".encode(), digest_size=8).digest()
        codes = self._quantizer.encode(self._residual, int.from_bytes(digest, "little"), out=self.array)
        if np.isfinite(self._residual).all():
            self._residual -= codes.decode(self._decoded)
        else:  # the codes are NaN, as the gradient is: the next one begins anew
            self._residual[...] = 0
        return codes

    def into(self, out: Values) -> Codes:
        codes: Codes = self.array
        return codes

    def decode(self, out: Values) -> None:
        self.array.decode(out)


BITS = {"int8": 8, "int4": 4}
KINDS = ("fp16", *BITS)


def kind_of(parameters: Mapping[str, Any]) -> str:
    """The kind that compression_params ask for. ValueError for any other."""
    kind = parameters.get("type")
    if kind not in KINDS or len(parameters) != 1:
        raise ValueError(f"compression_params={dict(parameters)!r}: {{'type': T}} with one of {KINDS} is expected")
    return str(kind)


def wire_of(kind: str | None, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> Plain:
    """The way of a tensor. name: no two wires round alike. Tensors that would not get smaller travel as they are."""
    if kind == "fp16" and dtype in (np.float32, np.float64):
        return Half(shape)
    if kind in BITS and dtype == np.float32:
        wire = Coded(shape, BITS[kind], name)
        if wire.array.nbytes < 4 * wire.array.count:
            return wire
    return Plain()
