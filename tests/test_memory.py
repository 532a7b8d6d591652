"""How much memory a gradient takes: the resident memory of whole processes, in units of the gradient.

A worker's own array counts, and all that fptps adds to it; what a process has before the array is made does not. What
the aggregators use at each moment is counted without a process, in gocore/kv/memory_test.go.
"""

import numpy as np
import pytest
from helpers import pass_gate

import fptps

MB = 128
FIXED = 0.2
"""Memory that does not grow with the gradient, such as stacks and shared memory."""


def status(name, process="self"):
    """A line of a process's status, in units of the gradient."""
    with open(f"/proc/{process}/status") as lines:
        return next(int(line.split()[1]) / 1024 / MB for line in lines if line.startswith(name + ":"))


def peak(address, value):
    """The largest memory of a worker, from init on over four rounds, which end with the test's permission."""
    with fptps.KVWorker() as kv:
        before = status("VmRSS")
        pass_gate(address)
        array = np.zeros(MB << 18, np.float32)
        array[:] = value
        kv.init(0, array)
        for _ in range(4):
            array[:] = kv.rank + 1
            kv.push_pull(0, array, out=array).result()
            kv.barrier()  # no worker is a round ahead of the others
        most = status("VmHWM") - before
        assert array.min() == array.max() == kv.num_workers * (kv.num_workers + 1) / 2
        pass_gate(address)
        return most


@pytest.mark.parametrize(
    ("cluster", "value", "worker", "server"),
    [
        # A worker that sums nothing has its array alone, a server its part of the sums.
        ((2, 1), 0, 1.0, 1.0),
        # A worker that sums has its part of them, too, where others push before it does; alone there are no others.
        ((2, 0), 0, 1.5, None),
        ((1, 0), 0, 1.0, None),
        # Until the first round the aggregators keep the initial value.
        ((2, 2), 1, 1.0, 1.0),
        ((2, 0), 1, 2.0, None),
        ((1, 0), 1, 2.0, None),
    ],
)
def test_peak(gate, cluster, value, worker, server):
    workers, servers = cluster
    with fptps.LocalCluster(workers, servers).start(peak, gate.address, value) as run:
        summing = [process.pid for process in run.processes if process.role == "server"]
        gate.wait(workers)
        before = {pid: status("VmRSS", pid) for pid in summing}
        gate.open()
        gate.wait(workers)
        most = {pid: status("VmHWM", pid) - before[pid] for pid in summing}
        gate.open()
        peaks = run.results()
    assert max(peaks) < worker + FIXED, peaks
    assert all(used < server + FIXED for used in most.values()), most
