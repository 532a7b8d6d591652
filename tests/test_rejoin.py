"""A cluster that follows another at the same address, whose scheduler is still about to end."""

import contextlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import in_threads

import fptps
from fptps.cluster._commands import HOST, reserved_port


def start(role, port, servers):
    numbers = {"DMLC_NUM_WORKER": "3", "DMLC_NUM_SERVER": str(servers)}
    own = {"DMLC_PS_ROOT_URI": HOST, "DMLC_PS_ROOT_PORT": str(port), **numbers}
    return subprocess.Popen([sys.executable, "-m", "fptps", role], env={**os.environ, **own})


@pytest.mark.parametrize("servers", [0, 1])
def test_nodes_go_on_at_the_address_of_the_last_cluster(servers):
    """They ask again at once, so that the old scheduler may read it and answer nothing."""
    ready = threading.Barrier(3)

    def first(place):
        with contextlib.suppress(fptps.NodeLostError, ZeroDivisionError), fptps.KVWorker(place, 3, servers) as kv:
            ready.wait()
            if kv.rank == 2:
                raise ZeroDivisionError
            kv.barrier()

    def work(place):
        first(place)
        while True:
            try:
                with fptps.KVWorker(place, 3, servers) as kv:
                    kv.init(2, np.zeros(2))
                    return kv.push_pull(2, np.full(2, kv.rank + 1.0)).result()[0]
            except fptps.ConnectError as error:
                if "refused" not in str(error):  # as the old one does before it knows of the loss
                    raise

    with reserved_port() as port, contextlib.ExitStack() as processes:

        def begin(role):
            process = start(role, port, servers)
            processes.callback(process.wait)
            processes.callback(process.kill)
            return process

        def follow():
            begin("scheduler").wait()
            begin("scheduler")

        def serve():
            while begin("server").wait():  # 1: lost, or refused by the old scheduler; 0 at the end of the next cluster
                pass

        *results, _ = in_threads(*[lambda: work(f"{HOST}:{port}")] * 3, follow, *[serve] * servers)
    assert results[:3] == [6.0, 6.0, 6.0]
