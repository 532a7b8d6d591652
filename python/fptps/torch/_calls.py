"""Sums, broadcasts and meetings that a program asks for by itself, with the names of Horovod and BytePS."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple, Union

import torch

from ..namespace import Operation
from ..ticket import Ticket
from ._compression import Compression, Compressor, Wire
from ._process import Process, current

Named = Union[Mapping[str, Any], Iterable[tuple[str, Any]]]
"""Tensors by name: a dict, such as model.state_dict(), or pairs, such as model.named_parameters()."""


class Op(Enum):
    """What becomes of the workers' values."""

    Average = "average"
    """Their mean."""
    Sum = "sum"
    """Their sum."""

    @property
    def operation(self) -> Operation:
        """As KVWorker names it."""
        return "mean" if self is Op.Average else "sum"


Average, Sum = Op.Average, Op.Sum


class Handle(NamedTuple):
    """A push_pull that is under way: for synchronize() and poll()."""

    ticket: Ticket[Any]
    wire: Wire
    output: torch.Tensor


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op | None = None,
    priority: int = 0,
) -> torch.Tensor:
    """Returns the mean (average=False: the sum) of all workers' tensors, as a new tensor like this one.

    name: the same on all workers for tensors that belong together. Without one, the n-th tensors of a shape and dtype
    belong together. The first call of a name waits until all workers have made theirs. op overrides average. priority:
    of two tensors under way the larger one is more urgent. Raises MismatchError if the workers' shapes, dtypes or ops
    differ, TypeError for the mean of integers, and what Ticket.result() raises. It waits as long as all workers live.
    """
    return synchronize(push_pull_async(tensor, average, name, compression, op, priority))


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op | None = None,
    priority: int = 0,
) -> torch.Tensor:
    """As push_pull(); the result is written into the tensor, which is returned."""
    return synchronize(push_pull_async_inplace(tensor, average, name, compression, op, priority))


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op | None = None,
    priority: int = 0,
) -> Handle:
    """As push_pull(), but returns a handle at once: synchronize(handle) gives the result. The tensor may be written to
    again as soon as the call has returned."""
    copy = torch.empty_like(tensor, requires_grad=False).copy_(tensor.detach())
    return _begin(copy, average, name, compression, op, priority)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: Op | None = None,
    priority: int = 0,
) -> Handle:
    """As push_pull_async(); the result is written into the tensor, which must be left alone until synchronize()."""
    return _begin(tensor, average, name, compression, op, priority)


def synchronize(handle: Handle) -> torch.Tensor:
    """Waits for a push_pull, and returns its result. It may be called again."""
    handle.wire.decode(handle.ticket.result(math.inf), handle.output.detach())
    return handle.output


def poll(handle: Handle) -> bool:
    """Whether synchronize() would return at once."""
    return handle.ticket.done()


def declare(name: str, tensor: torch.Tensor, compression: Compressor = Compression.none) -> None:
    """Announces a tensor that push_pull() will send under this name. Waits until all workers have done the same, so
    that the first push_pull() need not. Only the tensor's shape and dtype matter."""
    _wire(current(), name, tensor.detach(), compression)


def _begin(
    tensor: torch.Tensor, average: bool, name: str | None, compression: Compressor, op: Op | None, priority: int
) -> Handle:
    process = current()
    plain = tensor.detach()
    key, wire = _wire(process, name, plain, compression)
    array = wire.encode(plain)
    operation = (op or (Average if average else Sum)).operation
    ticket = process.worker.namespace("torch").namespace("calls").push_pull(
        key, array, out=array, op=operation, priority=priority
    )  # fmt: skip
    return Handle(ticket, wire, tensor)


def _wire(process: Process, name: str | None, tensor: torch.Tensor, compression: Compressor) -> tuple[str, Wire]:
    """The key of a tensor, which is declared, and a wire for one call of it."""
    key = f"without name, {tuple(tensor.shape)} {tensor.dtype}" if name is None else f"named {name}"
    key += "" if compression == Compression.none else f", {compression.name}"
    number = process.calls.get(key, 0)
    wire = compression.wire(tensor, f"{key} {number}", process.worker.rank)
    if not number:
        process.worker.namespace("torch").namespace("calls").init(key, wire.array)
    process.calls[key] = number + 1
    return key, wire


def broadcast_parameters(params: Named, root_rank: int = 0) -> None:
    """Writes worker root_rank's tensors into those of all workers: model.state_dict(), or model.named_parameters().

    Other values than tensors are left as they are. MismatchError names the tensors that differ in shape or dtype, or
    that a worker does not have.
    """
    current().finish()
    pairs = params.items() if isinstance(params, Mapping) else params
    _broadcast({str(name): value for name, value in pairs if isinstance(value, torch.Tensor)}, root_rank)


def _broadcast(tensors: dict[str, torch.Tensor], root: int) -> None:
    full = {name: t.detach() for name, t in tensors.items() if t.numel()}
    # Through a copy in the CPU's memory, of one order of axes: not all tensors are dense, or in that memory.
    ready = {name: t if t.is_cpu and t.is_contiguous() else t.cpu().contiguous() for name, t in full.items()}
    current().worker.broadcast(ready, root)
    for name, t in full.items():
        if ready[name] is not t:
            t.copy_(ready[name])


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Gives all workers' optimizers the state and the settings of worker root_rank's."""
    worker = current().worker
    own = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    skeleton = worker.broadcast_object(_emptied(own, tensors) if worker.rank == root_rank else None, root_rank)
    if worker.rank == root_rank:
        _broadcast(tensors, root_rank)
        return
    tensors.clear()
    state = _filled(skeleton, tensors)
    _broadcast(tensors, root_rank)
    optimizer.load_state_dict(state)


class _Hole(NamedTuple):
    """The place of a tensor in a state without its tensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _emptied(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """A copy of nested dicts, lists and tuples with holes in the places of their tensors, which are collected."""
    if isinstance(value, torch.Tensor):
        tensors[str(len(tensors))] = value
        return _Hole(tuple(value.shape), value.dtype)
    return _mapped(value, lambda inner: _emptied(inner, tensors))


def _filled(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The reverse: new tensors in the holes, collected in the same order."""
    if isinstance(value, _Hole):
        tensors[str(len(tensors))] = tensor = torch.empty(value.shape, dtype=value.dtype)
        return tensor
    return _mapped(value, lambda inner: _filled(inner, tensors))


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, dict):
        return {key: function(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(function, value))
    return value


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    """Returns worker root_rank's object on all workers. Pickle and errors: as KVWorker.broadcast_object()."""
    return current().worker.broadcast_object(obj, root_rank)


def allgather_object(obj: Any) -> list[Any]:
    """Returns the objects of all workers, by rank. Pickle and errors: as KVWorker.allgather_object()."""
    return current().worker.allgather_object(obj)


def barrier() -> None:
    """Waits until all workers have called it; at most FPTPS_TIMEOUT seconds, then TimeoutError names the missing."""
    current().worker.barrier()
