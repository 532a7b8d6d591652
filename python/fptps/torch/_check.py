"""Comparisons between workers: of their models' parameters by name, shape and dtype, and of the values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..errors import MismatchError
from ..worker import KVWorker
from ._process import current


def agree(worker: KVWorker, what: str, facts: Mapping[str, Any]) -> None:
    """Returns when all workers have called it with the same facts by name. All workers raise MismatchError otherwise,
    which names the first fact that differs from worker 0's."""
    own = json.dumps({name: str(fact) for name, fact in facts.items()})
    if len(set(worker.allgather_object(_digest(own.encode())))) == 1:
        return
    found = {rank: json.loads(text) for rank, text in worker._collectives.allgather(own).items()}
    first = min(found)
    other = next((rank for rank, theirs in found.items() if theirs != found[first]), first)
    raise MismatchError(f"{what} differ: {_difference(found[first], found[other], other)}")


def _difference(first: dict[str, str], second: dict[str, str], rank: int) -> str:
    names = list(dict.fromkeys([*first, *second]))
    name = next((name for name in names if first.get(name) != second.get(name)), None)
    if name is None:
        return f"worker {rank} has them in another order than worker 0"
    here, there = (f"has {of[name]}" if name in of else "has none" for of in (first, second))
    return f"{name or 'they'}: worker 0 {here}, worker {rank} {there}"


def check_layout(model: nn.Module) -> None:
    """Returns when all workers have called it with models alike. MismatchError, on all, names the first parameter or
    buffer whose shape or dtype differs, or that one worker does not have."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    agree(current().worker, "the models", {n: f"shape {tuple(t.shape)} and {t.dtype}" for n, t in tensors.items()})


def check(model: nn.Module) -> None:
    """Returns when all workers have called it, if all parameters have the same bits everywhere.

    MismatchError, on all workers, names the first parameter that differs and the workers whose values are not worker
    0's. It compares hashes: a few bytes a parameter travel. Buffers are each worker's own (see average_buffers()).
    """
    current().finish()
    own = {name: _digest(_bytes(p)) for name, p in model.named_parameters()}
    found = current().worker._collectives.allgather(own)
    first = min(found)
    for name in found[first]:
        others = [rank for rank, digests in found.items() if digests.get(name) != found[first][name]]
        if others:
            workers = ", ".join(map(str, others))
            raise MismatchError(
                f"parameter {name} differs: worker {workers} has other values than worker {first}. Whatever changes "
                "parameters on one worker alone has to happen on all, or before prepare()"
            )


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()
