"""Whole clusters of which processes are killed or stopped at random instants.

Without recovery no other process waits for ever, and each that had joined names the one that was lost. With recovery
the workers go on when others die, and all sums are right. A seed has one sequence of choices; the instants are as
exact as the machine.
"""

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


def sum_for(address, rounds):
    """Checks the sums of so many rounds."""
    with fptps.KVWorker() as kv:
        arrays = [np.zeros(count, np.float32) for count in COUNTS]
        init_all(kv, arrays)
        pass_gate(address)
        for iteration in range(rounds):
            sum_and_check(kv, arrays, iteration)
        return rounds


def sum_of_those_that_live(address, rounds):
    """So many rounds: the workers of each sum, if it is theirs."""
    with fptps.KVWorker() as kv:
        for key, count in enumerate(COUNTS):
            kv.init(key, np.zeros(count, np.int64))
        pass_gate(address)
        took_part = []
        for iteration in range(rounds):
            arrays = [np.full(count, 10**kv.rank + 10_000 * iteration, np.int64) for count in COUNTS]
            for key, ticket in enumerate([kv.push_pull(key, array, out=array) for key, array in enumerate(arrays)]):
                want = sum(10**rank + 10_000 * iteration for rank in (ticket.result() is not None and ticket.workers))
                assert (arrays[key] == want).all(), (iteration, key, ticket.workers, arrays[key][:3])
                took_part.append(ticket.workers)
        pass_gate(address)
        return took_part


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_and_servers_are_lost_at_random_instants(gate, seed):
    chance = random.Random(2000 + seed)
    workers, servers = chance.randint(2, 4), chance.randint(0, 3)
    environment = {**BEAT, "FPTPS_RECOVERY": "1", "FPTPS_VAN": chance.choice(["tcp", "shm", "auto"])}
    if chance.random() < 0.3:
        environment["FPTPS_DETERMINISTIC"] = "1"
    dead = chance.sample(range(workers), chance.randint(1, workers - 1))
    victims = [("worker", rank) for rank in dead]
    victims += [("server", rank) for rank in chance.sample(range(servers), chance.randint(0, servers))]
    chance.shuffle(victims)
    with fptps.LocalCluster(workers, servers, timeout=120, environment=environment).start(
        sum_of_those_that_live, gate.address, 200
    ) as run:
        gate.wait(workers)
        gate.open()
        stopped = []
        for victim in victims:
            threading.Event().wait(chance.uniform(0, 0.2))  # the instant
            number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            os.kill(run.process(*victim).pid, number)
            stopped += [run.process(*victim)] if number == signal.SIGSTOP else []
        gate.wait(workers - len(dead))  # the others have gone on
        for process in stopped:
            os.kill(process.pid, signal.SIGCONT)
        gate.open()
        outcomes = run.outcomes()
    left = [outcomes[rank] for rank in range(workers) if rank not in dead]
    assert all(outcome.error is None for outcome in left), left
    assert all(outcome.value == left[0].value for outcome in left)


@pytest.mark.parametrize("seed", SEEDS)
def test_servers_are_lost_at_random_instants(gate, seed):
    chance = random.Random(1000 + seed)
    workers, servers = chance.randint(1, 4), chance.randint(1, 3)
    environment = {**BEAT, "FPTPS_RECOVERY": "1", "FPTPS_VAN": chance.choice(["tcp", "shm", "auto"])}
    if chance.random() < 0.3:
        environment["FPTPS_DETERMINISTIC"] = "1"
    victims = chance.sample(range(servers), chance.randint(1, servers))
    with fptps.LocalCluster(workers, servers, timeout=120, environment=environment).start(
        sum_for, gate.address, 120
    ) as run:
        gate.wait(workers)
        gate.open()
        for rank in victims:
            threading.Event().wait(chance.uniform(0, 0.2))  # the instant
            os.kill(run.process("server", rank).pid, chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]))
        assert run.results() == [120] * workers
