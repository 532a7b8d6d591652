"""A member of a process group as PyTorch before 2.14 takes it: a ProcessGroup, which takes the place of PyTorch's own.

Such a group has this one backend for all devices. Its methods replace PyTorch's own, of which some take fewer
arguments, too. PyTorch keeps a group's name in its backends: here the group keeps it, for FSDP2 and others that ask.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from .._meeting import Place
from ._group import Member
from ._work import Work

Tensor = torch.Tensor


ProcessGroup: Any = dist.ProcessGroup  # for type checkers: what they know of it is of a newer PyTorch


class OlderProcessGroupFptps(Member, ProcessGroup):  # type: ignore[misc]
    """The calls are Member's, some by other names."""

    def __init__(self, place: Place, default: bool) -> None:
        ProcessGroup.__init__(self, place.rank, len(place.ranks))
        Member.__init__(self, place, default)
        self._name = ""

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    # Names before 2.13

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        # PyTorch's own coalescing passes no options.
        return self.all_gather_single_coalesced(outputs, inputs, opts or AllgatherOptions())

    _allgather_base = Member.all_gather_single
    _reduce_scatter_base = Member.reduce_scatter_single
    reduce_scatter_tensor_coalesced = Member.reduce_scatter_single_coalesced
    alltoall_base = Member.all_to_all_single

    def _get_backend(self, device: torch.device) -> OlderProcessGroupFptps:
        return self

    def _start_coalescing(self, device: torch.device) -> None:
        self.start_coalescing()

    def _end_coalescing(self, device: torch.device) -> Work:
        return self.end_coalescing()
