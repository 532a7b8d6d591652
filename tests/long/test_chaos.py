"""Whole clusters of which one process is killed or stopped at a random instant: no other waits for ever, and each that
had joined names the one that was lost. A seed has one sequence of choices; the instant is as exact as the machine."""

import os
import random
import signal
import threading

import numpy as np
import pytest
from helpers import init_all, pass_gate, sum_and_check

import fptps
from fptps._bench import check

SEEDS = range(60)
CLUSTERS = [(1, 1), (2, 0), (2, 1), (3, 2), (4, 2)]
COUNTS = [1, 5_000, 300_000]
"""Elements of each tensor: in one packet, in two, in many."""
BEAT = {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "5"}
"""A stopped process is known by its silence alone."""

pytestmark = pytest.mark.timeout(180)


def sum_for_ever(address):
    """Checks every sum. The gate, if there is one, opens once the cluster is complete."""
    with fptps.KVWorker() as kv:
        arrays = [np.zeros(count, np.float32) for count in COUNTS]
        init_all(kv, arrays)
        if address:
            pass_gate(address)
        iteration = 0
        while True:
            sum_and_check(kv, arrays, iteration)
            iteration += 1


@pytest.mark.parametrize("seed", SEEDS)
def test_one_process_is_lost_at_a_random_instant(gate, seed):
    chance = random.Random(seed)
    workers, servers = chance.choice(CLUSTERS)
    number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
    joined = chance.random() < 0.7
    environment = {**BEAT, "FPTPS_VAN": chance.choice(["tcp", "shm", "auto"])}
    with fptps.LocalCluster(workers, servers, timeout=120, environment=environment).start(
        sum_for_ever, gate.address if joined else ""
    ) as run:
        if joined:
            gate.wait(workers)
            gate.open()
        victim = chance.choice(run.processes)
        threading.Event().wait(chance.uniform(0, 0.3 if joined else 2))  # the instant
        os.kill(victim.pid, number)
        outcomes = run.outcomes()  # TimeoutError if a process is left
    for rank, outcome in enumerate(outcomes):
        survived = f"worker {rank}" != victim.name
        assert not isinstance(outcome.error, (check.WrongSum, fptps.InternalError)), outcome
        if joined and survived:
            assert isinstance(outcome.error, fptps.NodeLostError), (victim, outcome)
            assert victim.name in str(outcome.error), (victim, outcome)
    if joined:
        others = [process for process in run.processes if process.role != "worker" and process is not victim]
        assert all(process.returncode == 1 for process in others), run.processes
