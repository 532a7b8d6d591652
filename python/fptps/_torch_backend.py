"""Registers the backend "fptps" of torch.distributed, without the rest of fptps.

PyTorch calls register() by the entry points of this package: at the end of each `import torch`, and from 2.14 on also
when a program names the backend. So importing this module imports nothing else. `import fptps.torch` calls it, too.
"""

from __future__ import annotations

from typing import Any

NAME = "fptps"


def register() -> None:
    """Registers the backend, unless it is. Nothing happens in a PyTorch without torch.distributed, or before 2.9: 2.5
    does not end groups of Python's, nor say whether anybody waits for an operation."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()) and _version() >= (2, 9):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, _: object) -> Any:
    """A member of a process group, for PyTorch's DistributedBackendOptions."""
    from .torch._meeting import Place

    default = not options.global_ranks_in_group
    ranks = list(range(options.group_size)) if default else list(options.global_ranks_in_group)
    seconds = options.timeout.total_seconds()
    name = f"process group {options.group_id}"
    place = Place(options.store, options.group_rank, ranks, seconds, name)
    if _version() >= (2, 14):  # the first in which Python can define backends, and not only whole groups
        from .torch._backend._as_backend import ProcessGroupFptps

        return ProcessGroupFptps(place, default)
    from .torch._backend._as_group import OlderProcessGroupFptps

    return OlderProcessGroupFptps(place, default)


def _version() -> tuple[int, int]:
    """PyTorch's major and minor version."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
