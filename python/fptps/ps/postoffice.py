"""The process's node: its role, its rank, the other nodes, and barriers."""

from __future__ import annotations

import json
import math
import os
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import _logs, _report, _stacks, stats
from .._arguments import default_timeout
from .._environment import warn
from .._session import Session
from ..stats import Stats

if TYPE_CHECKING:
    from .app import SimpleApp

SCHEDULER: Final = 1
"""The scheduler's id, and the group of it alone."""
SERVER_GROUP: Final = 2
WORKER_GROUP: Final = 4
ALL: Final = SCHEDULER + SERVER_GROUP + WORKER_GROUP
"""Groups add up."""

MARGIN_S: Final = 5.0
"""How much longer than the core this side waits for a join, so that the core's error, which is more precise, comes
first."""

NO_NODE: Final = "there is no node: call fptps.ps.start() first, and nothing after finalize()"
ADVICE: Final = "Call fptps.ps.finalize()"


class Range(NamedTuple):
    """The keys from begin up to end, without it."""

    begin: int
    end: int


class Postoffice:
    """The one node of this process. Postoffice.get() gives it; start() and finalize() begin and end its life.

    Ids are ps-lite's: the scheduler's is 1, that of the server of rank r is 2r+8, of the worker of rank r 2r+9.
    """

    def __init__(self) -> None:
        self._session = Session(0.0, NO_NODE, ADVICE)  # of the node; not open before start() and after finalize()
        self._starting = threading.RLock()  # a signal handler may interrupt a start
        self._apps: list[SimpleApp] = []

    @staticmethod
    def get() -> Postoffice:
        """The node of this process."""
        return _of_process

    @property
    def role(self) -> str:
        """ "scheduler", "server" or "worker"."""
        return str(self._info()["role"])

    @property
    def rank(self) -> int:
        """The node's number among those of its role, from 0; 0 on the scheduler."""
        return int(self._info()["rank"])

    @property
    def id(self) -> int:
        """The node's id."""
        return int(self._place()["id"])

    @property
    def num_workers(self) -> int:
        """DMLC_NUM_WORKER. A process counts as often as customers of it call start()."""
        return int(self._info()["num_workers"])

    @property
    def num_servers(self) -> int:
        """DMLC_NUM_SERVER."""
        return int(self._info()["num_servers"])

    @property
    def is_recovery(self) -> bool:
        """Whether this node has taken the place of one that had died: the others have started long ago."""
        return bool(self._place()["recovered"])

    def node_ids(self, group: int) -> list[int]:
        """The ids of the nodes of a group, or of the one node whose id it is."""
        bits = {"scheduler": SCHEDULER, "server": SERVER_GROUP, "worker": WORKER_GROUP}
        members = self._place()["members"]
        return [m["id"] for m in members if m["id"] == group or (group <= ALL and bits[m["role"]] & group)]

    def server_key_ranges(self) -> list[Range]:
        """The keys of each server, by rank: 2**64 - 1 keys in equal parts."""
        bounds = json.loads(self._session.core.ps_bounds(self.num_servers))
        return [Range(begin, end) for begin, end in zip(bounds, bounds[1:])]

    def barrier(self, customer_id: int, group: int) -> None:
        """Waits until all nodes of a group that contains this one have called it, with each of their customers.

        ALL is for start() and finalize(): the second barrier of all nodes ends the cluster. A plain `fptps scheduler`
        counts as present in every barrier; one whose program has called start() comes itself. Where a node dies, its
        successor is waited for, and NodeLostError comes if there is none in time (FPTPS_RECOVERY_TIMEOUT). No other
        bound of time; the log names who is missing.
        """
        self._session.submit(self._session.core.ps_barrier, None, customer_id, group).result(math.inf)

    def dead_nodes(self) -> list[int]:
        """The ids of the nodes that the scheduler has declared dead, and whose place no other has taken yet."""
        return list(self._place()["dead"] or [])

    def stats(self) -> Stats:
        """The counters of this process since it joined. ClosedError before start() and after finalize()."""
        return stats.read(self._session)

    @property
    def handle(self) -> int:
        """The core's name of the node; ClosedError before start() and after finalize()."""
        return self._session.usable()

    def start(self, customer_id: int) -> None:
        """See the function start()."""
        first = False
        try:
            with self._starting:
                first = not self._session.handle
                if first:
                    warn(os.environ)
                    self._session = session = Session(0.0, NO_NODE, ADVICE)
                    session.name = "the node of fptps.ps"
                    session.start(session.core.open_ps, json.dumps(dict(os.environ)), customer_id)
                    _stacks.answer(session.core, session.handle)
                    ticket = session.submit(session.core.joined, None)
                else:
                    ticket = self._session.submit(self._session.core.ps_enter, None, customer_id)
            scheduler = os.environ.get("DMLC_ROLE", "worker") == "scheduler"
            ticket.result(math.inf if scheduler else default_timeout() + MARGIN_S)
            if first:
                _logs.identify(session, self.role, None if self.role == "scheduler" else self.rank)
                _report.takes_part(self.rank)
        except BaseException:
            if first:
                self._leave(orderly=False)
            raise

    def finalize(self, customer_id: int, do_barrier: bool) -> None:
        """See the function finalize()."""
        if customer_id == 0:
            self._leave(do_barrier)
        elif do_barrier:
            self.barrier(customer_id, ALL)

    def enter(self, app: SimpleApp) -> None:
        """Records an app, which ends with the node."""
        self._apps.append(app)

    def _leave(self, orderly: bool) -> None:
        try:
            self._session.leave(orderly, math.inf, drain=False)
        finally:
            for app in self._apps:
                app.stop()
            self._apps.clear()

    def _info(self) -> dict[str, Any]:
        return dict(json.loads(self._session.core.info(self.handle)))

    def _place(self) -> dict[str, Any]:
        return dict(json.loads(self._session.core.ps_place(self.handle)))


_of_process: Final = Postoffice()


def start(customer_id: int = 0) -> None:
    """Joins the cluster of the environment, and returns when all its nodes have joined and are ready.

    In a cluster that has lost a node of this role, this one takes its place and id, and is ready without the others;
    see Postoffice.get().is_recovery.

    A process calls it once, or once in a thread for each of its customers; each of these counts in DMLC_NUM_WORKER.
    ConfigError for settings that are missing, ConnectError or TimeoutError after FPTPS_TIMEOUT; the scheduler waits
    without bound.
    """
    Postoffice.get().start(customer_id)


def finalize(customer_id: int = 0, do_barrier: bool = True) -> None:
    """Waits, with do_barrier, until all nodes are here too; customer 0's then ends the node and its apps.

    Without do_barrier the others learn at once that this one has left, as if it had died. NodeLostError if one of them
    was lost before, and no other has taken its place.
    """
    Postoffice.get().finalize(customer_id, do_barrier)
