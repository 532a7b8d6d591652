"""dmlc ps-lite's classes, for programs that were written with it, and with its programs as nodes of one cluster.

    from fptps import ps

    ps.start()
    if ps.Postoffice.get().role == "server":
        ps.KVServer(0).set_request_handle(ps.KVServerDefaultHandle())
    elif ps.Postoffice.get().role == "worker":
        kv = ps.KVWorker(0)
        kv.wait(kv.push([1, 3], [0.5, 0.25]))
        values = kv.wait(kv.pull([1, 3]))
    ps.finalize()

Every process of the cluster runs the program; roles and addresses are in the environment (DMLC_ROLE and others). Calls
and variables one by one: docs/ps-lite.md.
"""

from .app import SimpleApp, SimpleData
from .postoffice import ALL, SCHEDULER, SERVER_GROUP, WORKER_GROUP, Postoffice, finalize, start
from .server import KVMeta, KVPairs, KVServer, KVServerDefaultHandle
from .worker import KVWorker

__all__ = [
    "ALL",
    "SCHEDULER",
    "SERVER_GROUP",
    "WORKER_GROUP",
    "KVMeta",
    "KVPairs",
    "KVServer",
    "KVServerDefaultHandle",
    "KVWorker",
    "Postoffice",
    "SimpleApp",
    "SimpleData",
    "finalize",
    "start",
]
