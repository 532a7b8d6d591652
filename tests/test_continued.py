"""A process that is stopped (SIGSTOP), declared dead by its silence, and then goes on: it ends by a NodeLostError that
names itself, and disturbs no other node."""

import os
import signal
import sys

import numpy as np
import pytest
from helpers import pass_gate
from ps_cluster import SCHEDULER, SERVER, cluster

import fptps

BEAT = {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "4"}
WORKER = [sys.executable, "-m", "ps_programs", "interactive_worker"]


@pytest.mark.usefixtures("van")
def test_continued_worker(gate):
    def work():
        kv = fptps.KVWorker()
        for key in (1, 2):
            kv.init(key, np.zeros(50_000))
        begun = kv.push_pull(1, np.ones(50_000)) if kv.rank == 1 else None
        pass_gate(address)  # where worker 1 is stopped
        ends = []
        for wait in (begun.result if begun else kv.push_pull(2, np.ones(50_000)).result, kv.barrier, kv.close):
            try:
                wait()
                ends.append("ended well")
            except Exception as error:
                ends.append(f"{type(error).__name__}: {error}")
        if kv.rank != 1:
            pass_gate(address, ends)
        return ends

    address = gate.address
    with fptps.LocalCluster(3, 1, environment=BEAT).start(work) as run:
        victim = run.process("worker", 1).pid
        gate.wait(3)
        os.kill(victim, signal.SIGSTOP)
        gate.open()
        try:
            survivors = gate.wait(2)
        finally:
            os.kill(victim, signal.SIGCONT)
        gate.open()
        outcomes = run.outcomes()
    assert [outcome.error for outcome in outcomes] == [None] * 3
    for ends in [*survivors, *(outcome.value for outcome in outcomes)]:
        assert [end.partition(": ")[::2] for end in ends] == [("NodeLostError", ends[0].partition(": ")[2])] * 3
        assert "worker 1 was lost: it was silent for" in ends[0]


@pytest.mark.parametrize(
    "server", [SERVER, [sys.executable, "-m", "ps_programs", "summing_server"]], ids=["plain server", "fptps.ps"]
)
def test_continued_worker_whose_place_is_taken(server):
    """In a cluster that goes on: the successor has its place, and the barrier of the end waits for that one."""
    with cluster(2, 1, **BEAT) as made:
        scheduler = made.start("scheduler", SCHEDULER)
        served = made.start("server", server)
        first = made.start("worker", WORKER, stdin=-1, DMLC_WORKER_ID="0")
        second, hello = made.start_interactive("worker", WORKER, DMLC_WORKER_ID="1")
        assert hello == {"rank": 1, "recovered": False}
        made.answer(first, 0)
        os.kill(made.processes[second].pid, signal.SIGSTOP)
        said = {"dead": []}
        pushes = 0
        while not said["dead"]:
            said = made.command(first, "push")
            pushes += 1
        third, hello = made.start_interactive("worker", WORKER)
        assert hello == {"rank": 1, "recovered": True}
        assert made.command(third, "push")["got"] == [0.0]
        made.processes[second].stdin.write(b"end\n")  # it comes to the barrier of the end
        made.processes[second].stdin.flush()
        os.kill(made.processes[second].pid, signal.SIGCONT)
        made.wait(second, code=1)
        assert "NodeLostError: worker 1 was lost: it was silent for" in made.errors(second)
        for worker in (first, third):
            assert made.command(worker, "push") == {"got": [0.0], "dead": []}
        assert made.command(first, "pull") == {"got": [pushes + 2 + 1 + 2], "dead": []}
        made.processes[first].stdin.write(b"end\n")
        made.processes[first].stdin.flush()
        assert made.command(third, "pull") == {"got": [pushes + 2 + 1 + 2], "dead": []}
        made.processes[third].stdin.write(b"end\n")
        made.processes[third].stdin.flush()
        made.wait(first, third, served, scheduler)
