"""The operations of torch.distributed.ReduceOp, on fptps."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import torch

from ._memory import SUMMABLE
from ._operation import Verb

SUMS: Final = {"SUM": Verb.SUM, "AVG": Verb.MEAN}
"""Those that the aggregators do, packet by packet."""

LOCAL: Final[dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
"""Those for which every member gathers all values, and reduces them itself."""


def name_of(op: Any, dtype: torch.dtype, call: str) -> str:
    """The name of a ReduceOp; NotImplementedError for one that fptps has not, TypeError for one of another dtype."""
    kind = getattr(op, "op", op)
    name = str(getattr(kind, "name", kind)).rpartition(".")[2]
    if name not in SUMS and name not in LOCAL:
        raise NotImplementedError(f"{call}: ReduceOp.{name}: fptps has {', '.join([*SUMS, *LOCAL])}")
    if name in SUMS and dtype not in SUMMABLE:
        raise TypeError(f"{call}: fptps cannot sum {dtype}")
    if name == "AVG" and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"{call}: ReduceOp.AVG of {dtype} would lose its fractions: use SUM, or a float tensor")
    return name


def reduced(name: str, values: torch.Tensor) -> torch.Tensor:
    """The reduction of the rows of a matrix."""
    return reduce(LOCAL[name], values.unbind())
