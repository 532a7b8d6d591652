"""How a process group joins a cluster of its own, of its members alone, and leaves it.

The default group takes the cluster that the environment names instead (fptps run), if there is one.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from typing import Final

from ...errors import ConfigError, FptpsError
from ...worker import KVWorker
from .._meeting import Place, Scheduler, meet

ADVICE: Final = "Call torch.distributed.destroy_process_group() at the end of the program"

_log = logging.getLogger("fptps")
_joined_environment = False  # the cluster of the environment ends with the first default group


class Membership:
    """A worker of a group's cluster, and the cluster's scheduler where it runs in this process."""

    def __init__(self, kv: KVWorker, scheduler: Scheduler | None, name: str) -> None:
        self.kv = kv
        self._scheduler = scheduler
        self._name = name
        kv._session.name, kv._session.advice = name, ADVICE

    def leave(self) -> None:
        """Leaves in good order, on a thread: it needs the other members, and they may first do something else."""
        threading.Thread(target=self._leave, name="fptps leaves a process group").start()

    def _leave(self) -> None:
        try:
            self.kv.close()
        except FptpsError as error:
            _log.warning("%s did not end in good order: %s", self._name, error)
        if self._scheduler is not None:
            self._scheduler.end()

    def abort(self) -> None:
        """Leaves at once; the other members see this one as lost."""
        self.kv._session.drop("its program aborted the process group")
        if self._scheduler is not None:
            self._scheduler.drop()


def join(place: Place, default: bool) -> Membership:
    """Joins the cluster of a group; default: it is the default group. Waits for all members, at most its timeout."""
    global _joined_environment
    if default and os.environ.get("DMLC_PS_ROOT_URI") and not _joined_environment:
        _joined_environment = True
        return _join_environment(place)
    return Membership(*meet(place, {"FPTPS_RECOVERY": "0"}), place.name)  # a group cannot lose a member


def _join_environment(place: Place) -> Membership:
    named, size = os.environ.get("DMLC_NUM_WORKER"), len(place.ranks)
    if named != str(size):
        raise ConfigError(
            f"the process group has {size} members, and the environment's cluster DMLC_NUM_WORKER={named} workers: "
            "start as many processes as it has workers, or unset DMLC_PS_ROOT_URI, and the group makes its own cluster"
        )
    kv = KVWorker(timeout=place.seconds)
    if kv._recovers:
        kv.__exit__(ConfigError, None, None)
        raise ConfigError(
            "FPTPS_RECOVERY=1, but a process group of torch.distributed cannot go on without a member: unset it, or "
            "use fptps.torch.prepare()"
        )
    members = place._replace(ranks=kv.allgather_object(place.rank))
    kv._session.named = functools.partial(members.named, hosted=False)
    return Membership(kv, None, place.name)
