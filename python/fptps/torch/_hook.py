"""A communication hook for DistributedDataParallel: gradients are averaged by fptps, whatever DDP's own backend is."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with its classes.
from typing import Any

import torch
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from ..namespace import Namespace
from ._backend._operation import Operation
from ._backend._work import future_of


class DDPState:
    """The state of ddp_hook: one for each model.

        model = DistributedDataParallel(net)
        model.register_comm_hook(fptps.torch.DDPState(kv, model), fptps.torch.ddp_hook)

    tensors: a KVWorker, or a namespace of it; two models need a namespace each. Its workers are the processes that DDP
    trains with: ValueError if their number differs from that of DDP's process group.
    model: the DistributedDataParallel, or the module within it; it has to be the same on all workers.
    """

    def __init__(self, tensors: Namespace, model: torch.nn.Module) -> None:
        group = getattr(model, "process_group", None)
        workers = len(tensors._session.workers())
        if group is not None and group.size() != workers:
            raise ValueError(
                f"DDP trains with {group.size()} processes, and fptps has {workers} workers: start as "
                "many of one as of the other"
            )
        self._tensors = tensors
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._model = model  # so that no other parameter gets the id of one of these
        self._declared: set[str] = set()

    def mean(self, bucket: GradBucket) -> Any:
        """Begins to average the gradients of a bucket, in place. Returns a torch Future of the bucket's buffer."""
        buffer = bucket.buffer().detach()
        flat = buffer.cpu()
        parameters = bucket.parameters()
        keys = [self._key(parameter, flat.dtype) for parameter in parameters]
        lengths = [parameter.numel() for parameter in parameters]
        parts = dict(zip(keys, torch.split_with_sizes(flat, lengths)))
        new = {key: part for key, part in parts.items() if key not in self._declared}
        if new:
            self._tensors.declare_all(new)
            self._declared.update(new)
        # DDP numbers the buckets in the order of the backward pass: the next forward pass needs the last one first.
        urgency = dict.fromkeys(keys, bucket.index())
        tickets = self._tensors.push_pull_all(parts, out=parts, op="mean", priority=urgency)
        operation = Operation("ddp_hook", tuple)
        operation.begin(list(tickets.values()), [] if buffer.is_cpu else [lambda: buffer.copy_(flat)])
        return future_of(operation, bucket.buffer())

    def _key(self, parameter: torch.Tensor, dtype: torch.dtype) -> str:
        """A parameter's key: buckets change after the first step, and other hooks may compress the gradients."""
        name = self._names.get(id(parameter))
        if name is None:
            raise KeyError(
                "a gradient of a parameter that the model of DDPState has not: make a DDPState for this model"
            )
        return f"{name} {str(dtype)[6:]}"


def ddp_hook(state: DDPState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages DDP's gradients over the workers: for DistributedDataParallel.register_comm_hook().

    Each parameter's gradient is a tensor of fptps, and the gradients that the next forward pass needs first leave
    first. The order of DDP's buckets, which it changes after the first step, has no meaning for fptps. Compression by
    PyTorch's wrappers, such as fp16_compress_wrapper(ddp_hook), works.
    """
    future: torch.futures.Future[torch.Tensor] = state.mean(bucket)
    return future
