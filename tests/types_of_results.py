"""What type checkers infer of tickets' results: `make lint` runs mypy on it. Nothing calls it."""

from typing import Any

import numpy as np
import torch
from typing_extensions import assert_type

import fptps

Floats = np.ndarray[Any, np.dtype[np.float32]]


def train(kv: fptps.KVWorker, array: Floats, tensor: torch.Tensor, many: dict[str, Floats], other: bytearray) -> None:
    assert_type(kv.push_pull(1, array).result(), Floats)
    assert_type(kv.push_pull("w", array, op="mean", priority=3).result(), Floats)
    assert_type(kv.push_pull(1, array, out=tensor), fptps.Ticket[torch.Tensor])
    assert_type(kv.push_pull(1, array, tensor), fptps.Ticket[torch.Tensor])
    assert_type(kv.push_pull(1, tensor), fptps.Ticket[torch.Tensor])
    assert_type(kv.push_pull(1, other), fptps.Ticket[Any])
    assert_type(kv.pull(1), fptps.Ticket[Any])
    assert_type(kv.pull(1, out=array).result(), Floats)
    assert_type(kv.pull_rows(1, [2], array), fptps.Ticket[Floats])
    assert_type(kv.push_pull_all(many), dict[str, fptps.Ticket[Floats]])
    assert_type(kv.push_pull_all({1: tensor}, out={1: tensor}, priority={1: 2}), dict[int, fptps.Ticket[torch.Tensor]])
    assert_type(fptps.wait([kv.push_pull(1, array), kv.push_pull(2, array)]), list[Floats])
    assert_type(kv.push(1, array), fptps.Ticket[None])
    assert_type(kv.stats().rounds, int)
    kv.init_all(many)
    kv.push_pull(1, array, op="product")  # type: ignore[call-overload]
