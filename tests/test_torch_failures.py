"""Deaths in trainings with PyTorch.

With the backend of torch.distributed a member dies or is late: an error that names it, and no hang. With
FPTPS_RECOVERY=1 a server or a worker dies: the training goes on.
"""

from __future__ import annotations

import os
import signal

import pytest
from helpers import Gate, pass_gate

import fptps

torch = pytest.importorskip("torch")
import torch_failures  # noqa: E402
import torch_group  # noqa: E402

pytestmark = pytest.mark.demo


def survivors(folder, program, ranks, dead):
    """The results of those that live."""
    processes = torch_group.start(folder, program, ranks)
    outcomes = [process.communicate(timeout=100)[1] for process in processes]
    assert processes[dead].returncode == -9
    living = [rank for rank in range(ranks) if rank != dead]
    for rank in living:
        assert processes[rank].returncode == 0, outcomes[rank]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in living]


def test_a_member_dies(tmp_path):
    for result in survivors(tmp_path, torch_failures.a_member_dies, 3, dead=1):
        (wait, rank, text), (future, _, other_text), (later, later_rank, _) = result
        assert (wait, rank) == (later, later_rank) == ("NodeLostError", 1)
        assert "rank 1 was lost" in text
        assert future == "RuntimeError"  # PyTorch's, around it
        assert "rank 1 was lost" in other_text


def test_the_member_with_the_scheduler_dies(tmp_path):
    for [(kind, rank, text)] in survivors(tmp_path, torch_failures.the_first_member_dies, 3, dead=0):
        assert (kind, rank) == ("NodeLostError", 0), text
        assert "rank 0" in text


def test_the_other_end_of_a_message_dies(tmp_path):
    result, _ = survivors(tmp_path, torch_failures.the_other_end_of_a_message_dies, 3, dead=1)
    for kind, rank, text in result:
        assert (kind, rank) == ("NodeLostError", 1), text


def test_a_member_is_late(tmp_path):
    first, second, third = torch_group.run(tmp_path, torch_failures.a_member_is_late, 3)
    assert first[0] == second[0] == third[0] == [6.0, 6.0, 6.0]
    for _, (kind, _, text) in (first, third):
        assert kind == "TimeoutError"
        assert "missing: rank 1" in text


def train(gate, kill):
    """In a worker: the weights after a training, in which rank 0 may kill the server."""
    import fptps.torch as ft

    ft.init()
    server = pass_gate(gate)
    torch.manual_seed(ft.rank())
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
    model, optimizer = ft.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    for step in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 300)).square().mean()
        if kill and step == 5 and ft.rank() == 0:
            os.kill(server, signal.SIGKILL)
        loss.backward()
        optimizer.step()
    weights = [p.detach().clone() for p in model.parameters()]
    ft.shutdown()
    return [w.numpy() for w in weights]


def test_a_server_dies_in_a_training():
    weights = []
    for kill in (False, True):
        cluster = fptps.LocalCluster(2, 1, 100, {"FPTPS_RECOVERY": "1"})
        with Gate() as gate, cluster.start(train, gate.address, kill) as run:
            gate.wait(2)
            gate.open(run.process("server").pid)
            weights += run.results()
    for others in weights[1:]:
        assert all((a == b).all() for a, b in zip(weights[0], others, strict=True))


def train_elastic(gate, killer):
    """In a worker: trains on data that the workers divide among themselves, and does so anew when one has died.

    Returns the weights and the examples of each step.
    """
    import fptps.torch as ft

    ft.init()
    victim = pass_gate(gate)
    torch.manual_seed(ft.rank())
    layers = torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.ReLU(), torch.nn.Linear(20, 10)
    model = torch.nn.Sequential(*layers)
    model, optimizer = ft.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    shares = []
    for step in range(12):
        workers = optimizer.workers
        mine = list(range(workers.index(ft.rank()), 24, len(workers)))
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        loss = model(torch.randn(24, 30, generator=generator)[mine]).square().mean()
        if step == 5 and ft.rank() == killer:
            os.kill(victim, signal.SIGKILL)
        loss.backward()
        optimizer.step()
        shares.append(mine)
    ft.check(model)
    ft.average_buffers(model)
    weights = [t.detach().clone().numpy() for t in model.state_dict().values()]
    other = torch.nn.Linear(2, 2)
    ft.prepare(other, torch.optim.Adam(other.parameters()))
    ft.check(other)
    assert ft.workers() == optimizer.workers
    assert ft.size() == len(ft.workers()) == 2
    ft.shutdown()
    return weights, shares


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_worker_dies_in_a_training(victim):
    cluster = fptps.LocalCluster(3, 1, 100, {"FPTPS_RECOVERY": "1"})
    with Gate() as gate, cluster.start(train_elastic, gate.address, int(victim == 0)) as run:
        gate.wait(3)
        gate.open(run.process("worker", victim).pid)
        results = run.results()
    assert results.pop(victim) is None
    (weights, shares), (others, their_shares) = results
    assert all((a == b).all() for a, b in zip(weights, others, strict=True))
    assert [len(mine) for mine in shares][:5] == [8] * 5
    for mine, theirs in zip(shares[8:], their_shares[8:], strict=True):
        assert sorted(mine + theirs) == list(range(24))
