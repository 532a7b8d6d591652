"""The backend "fptps" of torch.distributed.

    import torch.distributed as dist

    dist.init_process_group("fptps")

Every process group is an fptps cluster of its own, of its members alone. PyTorch finds the backend by the entry point
of this package; `import fptps.torch` registers it too. It needs PyTorch 2.14, the first whose backends may be written
in Python.

    _rendezvous  how the members of a group join one cluster, and leave it
    _group       torch.distributed's calls, as operations
    _operation   an operation: what it moves (Transfer), and its end
    _line        begins operations in order, declares tensors
    _pieces      cuts tensors of any length into tensors of few lengths
    _memory      CPU memory for tensors: staging
    _reduction   ReduceOp
    _messages    send and recv, in clusters of two
    _work        the Work that a call returns
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

NAME = "fptps"


def register() -> None:
    """Registers the backend, unless it is. Nothing happens in a PyTorch without torch.distributed, or before 2.14."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()) or not _subclassed():
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _subclassed() -> bool:
    """Whether this PyTorch lets Python define backends."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (major, minor) >= (2, 14)


def _create(options: Any, _: object) -> Any:
    """A process group for PyTorch's DistributedBackendOptions."""
    from .._meeting import Place
    from ._group import ProcessGroupFptps

    default = not options.global_ranks_in_group
    ranks = list(range(options.group_size)) if default else list(options.global_ranks_in_group)
    seconds = options.timeout.total_seconds()
    name = f"process group {options.group_id}"
    place = Place(options.store, options.group_rank, ranks, seconds, name)
    return ProcessGroupFptps(place, default)
