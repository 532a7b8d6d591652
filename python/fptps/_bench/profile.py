"""A model's communication profile: the tensors and the compute times of its layers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .units import FLOAT32


@dataclass(frozen=True)
class Layer:
    """A layer: number of elements of each tensor, and seconds of its forward and backward steps."""

    elements: tuple[int, ...]
    forward_s: float
    backward_s: float

    @property
    def nbytes(self) -> int:
        """Bytes of its gradients."""
        return FLOAT32 * sum(self.elements)


@dataclass(frozen=True)
class Profile:
    """A model, its layers in the order of the forward pass."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def compute_s(self) -> float:
        """Seconds of an iteration without any communication."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)


def load(path: Path, scale: float) -> Profile:
    """Reads a profile and multiplies the sizes of its tensors by scale; each keeps at least one element.

    Raises ValueError for an invalid file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    try:
        rows = _field(content, "layers", list)
        layers = tuple(_layer(row, scale, f"layer {number}: ") for number, row in enumerate(rows, 1))
        name = _field(content, "name", str)
    except ValueError as error:
        raise ValueError(f"{path} is no communication profile (docs/bench.md): {error}") from None
    if not any(layer.elements for layer in layers):
        raise ValueError(f"{path} is no communication profile (docs/bench.md): it has no tensors")
    return Profile(name, layers)


def _layer(row: Any, scale: float, where: str) -> Layer:
    elements = []
    for tensor in _field(row, "tensors", list, where):
        count = _field(tensor, "elements", int, f"{where}a tensor: ")
        if count < 1:
            raise ValueError(f"{where}a tensor has {count} elements")
        elements.append(max(1, round(count * scale)))
    return Layer(tuple(elements), _seconds(row, "fp_ms", where), _seconds(row, "bp_ms", where))


def _seconds(row: Any, name: str, where: str) -> float:
    milliseconds = float(_field(row, name, (int, float), where))
    if not 0 <= milliseconds < math.inf:
        raise ValueError(f"{where}{name!r} is {milliseconds}: a number of milliseconds is expected")
    return milliseconds / 1e3


def _field(row: Any, name: str, kind: Any, where: str = "") -> Any:
    """A field of a JSON object; ValueError unless it has that type."""
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where}{name!r} is missing, or not of the right kind")
    return value
