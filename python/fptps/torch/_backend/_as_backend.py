"""A member of a process group as PyTorch from 2.14 on takes it: a Backend, one of several that a group may have."""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import Backend

from .._meeting import Place
from ._group import Member


class ProcessGroupFptps(Member, Backend):
    """The calls are Member's."""

    def __init__(self, place: Place, default: bool) -> None:
        Backend.__init__(self, place.rank, len(place.ranks))
        Member.__init__(self, place, default)

    @property
    def options(self) -> Backend.Options:
        return Backend.Options("fptps", timedelta(seconds=self._seconds))
