"""What autograd has to know of the core's writes into PyTorch's tensors. PyTorch is never imported from here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def imported_torch() -> Any:
    """PyTorch, if the program has imported it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "Tensor") else None


def modified(array: Any) -> None:
    """Reports to autograd that an array's elements change. To be called when the core begins to write, and at the end.

    A gradient that needs a value saved before either moment is then PyTorch's RuntimeError, "modified by an inplace
    operation", and not a wrong number. Nothing happens for anything but a tensor.
    """
    torch = imported_torch()
    if torch is not None and isinstance(array, torch.Tensor) and not array.is_inference():
        _increment_version(torch)(array)


@functools.lru_cache(maxsize=1)
def _increment_version(torch: Any) -> Callable[[Any], None]:
    """What makes autograd count one more modification of a tensor."""
    increment: Callable[[Any], None] | None = getattr(torch.autograd.graph, "increment_version", None)
    return increment or _write_nothing  # an older PyTorch


def _write_nothing(tensor: Any) -> None:
    """Modifies no element of a tensor, in place: autograd counts that too."""
    tensor.detach().as_strided((0,), (1,)).zero_()
