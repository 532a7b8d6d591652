"""The one KVWorker of this process, which all its stores share."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import sys

import mxnet as mx

from ..worker import KVWorker
from . import _engine

_log = logging.getLogger("fptps")


class Process:
    """This process's place in its cluster, from the first store to shutdown()."""

    def __init__(self) -> None:
        self.worker = KVWorker()
        self.pid = os.getpid()
        self.numbers = itertools.count()
        """Of the stores: the same on all workers, as all make theirs in the same order."""
        _log.info("worker %d of %d", self.worker.rank, self.worker.num_workers)

    def close(self, reason: BaseException | None = None) -> None:
        """Leaves the cluster: together with the other workers, or after an exception at once."""
        try:
            if reason is None:
                mx.nd.waitall()
        except BaseException as error:
            reason = error
            raise
        finally:
            try:
                self.worker.__exit__(None if reason is None else type(reason), reason, None)
            finally:
                _engine.abandon()
                with contextlib.suppress(Exception):  # reported above; MXNet would do so again at the program's end
                    mx.nd.waitall()
                _engine.settle()


_current: list[Process] = []  # empty: no store was made, or the cluster was left


def current() -> Process:
    """The process's place, which the first call takes: in the cluster that the environment names, or else alone."""
    if not _current:
        _current.append(Process())
    return _current[0]


def shutdown() -> None:
    """Waits for all operations under way and leaves the cluster, together with the other workers.

    Otherwise that happens when the program ends. Without any store, and again, it does nothing. Raises the error of an
    operation that failed, and what KVWorker.close() raises.
    """
    if _current:
        _current.pop().close()


def _leave() -> None:
    """At the program's end. After an exception that nobody caught the others do not wait for this worker."""
    if _current and _current[0].pid == os.getpid():
        _current.pop().close(getattr(sys, "last_value", None))


atexit.register(_leave)
