"""A node that has died is replaced: clusters of real processes, and SIGKILL."""

import sys

import pytest
from ps_cluster import SCHEDULER, SERVER, cluster

WORKER = [sys.executable, "-m", "ps_programs", "interactive_worker"]
PROGRAM_SERVER = [sys.executable, "-m", "ps_programs", "summing_server"]


def until_alive(made, worker, line):
    """Tells a worker a line until all servers answer it: they are connected anew in a moment."""
    while True:
        said = made.command(worker, line)
        if not any(isinstance(got, str) for got in said["got"]):
            return said


def end(made, *workers):
    """Ends a cluster in good order."""
    for worker in workers:
        made.processes[worker].stdin.write(b"end\n")
        made.processes[worker].stdin.flush()


@pytest.mark.parametrize("server", [SERVER, PROGRAM_SERVER], ids=["plain server", "fptps.ps"])
def test_worker_is_replaced(server):
    with cluster(2, 1) as made:
        scheduler = made.start("scheduler", SCHEDULER)
        served = made.start("server", server)
        # Both must have started before the first reports that it has.
        first = made.start("worker", WORKER, stdin=-1, DMLC_WORKER_ID="0")
        second, hello = made.start_interactive("worker", WORKER, DMLC_WORKER_ID="1")
        assert hello == {"rank": 1, "recovered": False}
        made.answer(first, 0)
        for worker in (first, second):
            assert made.command(worker, "push")["got"] == [0.0]
        made.kill(second)
        assert made.command(first, "push")["got"] == [0.0]  # it goes on
        third, hello = made.start_interactive("worker", WORKER)
        assert hello == {"rank": 1, "recovered": True}
        assert made.command(third, "push") == {"got": [0.0], "dead": []}
        assert made.command(first, "pull") == {"got": [1 + 2 + 1 + 2], "dead": []}
        end(made, first, third)
        made.wait(first, third, served, scheduler)


def test_server_is_replaced():
    """What is asked of the dead one fails, the rest goes on; the new one has its keys, and none of its values."""
    with cluster(1, 2) as made:
        scheduler = made.start("scheduler", SCHEDULER)
        servers = [made.start("server", SERVER, DMLC_SERVER_ID=str(rank)) for rank in range(2)]
        worker, _ = made.start_interactive("worker", WORKER)
        assert made.command(worker, "push")["got"] == [0.0, 0.0]
        made.kill(servers[1])
        said = made.command(worker, "push")
        assert said["got"][0] == 0.0
        assert "server 1 was lost" in said["got"][1]
        assert made.command(worker, "pull")["got"][0] == 2.0
        third = made.start("server", SERVER)
        until_alive(made, worker, "pull")
        assert made.command(worker, "push") == {"got": [0.0, 0.0], "dead": []}
        assert made.command(worker, "pull")["got"] == [3.0, 1.0]
        # And again: the place of the one that came.
        made.kill(third)
        assert "server 1 was lost" in made.command(worker, "push")["got"][1]
        fourth = made.start("server", SERVER)
        until_alive(made, worker, "pull")
        end(made, worker)
        made.wait(worker, servers[0], fourth, scheduler)


def test_no_successor_joins():
    """Then the cluster ends, with a NodeLostError that names the dead node, on all nodes."""
    with cluster(1, 2, FPTPS_RECOVERY_TIMEOUT="1") as made:
        scheduler = made.start("scheduler", SCHEDULER)
        servers = [made.start("server", SERVER, DMLC_SERVER_ID=str(rank)) for rank in range(2)]
        worker, _ = made.start_interactive("worker", WORKER)
        made.kill(servers[1])
        end(made, worker)
        made.wait(worker, servers[0], scheduler, code=1)
        for number in (worker, servers[0], scheduler):
            assert "server 1" in made.errors(number)
            assert "no other took its place" in made.errors(number)
