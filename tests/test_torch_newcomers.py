"""Workers that come to a training with PyTorch: fptps.torch.State."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fptps

torch = pytest.importorskip("torch")
import fptps.torch as ours  # noqa: E402

pytestmark = pytest.mark.demo


def train(overlap, death, workers_at_the_end):
    """In a worker: a training in which rank 1 kills itself, and rank 0 starts a newcomer, until all are there. overlap:
    that of DistributedOptimizer, or "servers" for a ServerOptimizer.

    Returns this worker's first step, the steps, and the workers of the last one. At the end all have the same weights,
    states of the optimizer and learning rates.
    """
    torch.set_num_threads(1)
    ours.init()
    torch.manual_seed(ours.rank())
    model = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 2))
    for p in model.parameters():  # of a newcomer they are others
        p.data += ours.rank()
    rule = fptps.optim.AdamW(lr=0.01) if overlap == "servers" else None
    model, optimizer = ours.prepare(
        model, ours.ServerOptimizer(rule) if rule else torch.optim.AdamW(model.parameters(), lr=0.01)
    )
    if overlap == "none":
        optimizer = ours.DistributedOptimizer(optimizer.optimizer, model.named_parameters(), overlap="none")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    state = ours.State(model, optimizer, scheduler=scheduler, step=0, seen=[])
    first, came, more, stop = None, None, 0, False
    while not stop:
        state.admit()
        first = state.step if first is None else first
        workers = optimizer.workers
        if state.step == death and ours.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step == death + 2 and ours.rank() == 0:
            came = newcomer(overlap, workers_at_the_end)
        generator = torch.Generator().manual_seed(state.step)
        data = torch.randn(60, 8, generator=generator)[workers.index(ours.rank()) :: len(workers)]
        optimizer.zero_grad()
        model(data).square().mean().backward()
        if state.step == 1:
            with pytest.raises(RuntimeError, match=r"admit\(\) between backward\(\) and step\(\)"):
                state.admit()
        optimizer.step()
        scheduler.step()
        state.step += 1
        state.seen.append(len(workers))
        more += workers == tuple(workers_at_the_end)
        stop = bool(ours.push_pull(torch.tensor(float(ours.rank() == 0 and more >= 4)), name="stop"))
    ours.check(model)
    sums = _sum(optimizer.state_dict()) if rule is None else None
    same = ours.allgather_object((state.seen, scheduler.get_last_lr(), sums, float(model[1].num_batches_tracked)))
    assert all(one == same[0] for one in same)
    result = first, state.step, workers
    ours.shutdown()
    if came is not None:
        out, err = came.communicate(timeout=60)
        assert came.returncode == 0, err.decode()
        result = (*result, json.loads(out))
    return result


def _sum(state):
    return sum(float(value.double().sum()) for of in state["state"].values() for value in of.values())


def newcomer(overlap, workers_at_the_end):
    shared = {name: value for name, value in os.environ.items() if name != "DMLC_WORKER_ID"}
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import json, test_torch_newcomers as t; "
        f"print(json.dumps(t.train({overlap!r}, -9, {workers_at_the_end!r})))"
    )
    return subprocess.Popen([sys.executable, "-c", code], env=shared, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("overlap", ["forward", "none"])
@pytest.mark.parametrize(("workers", "at_the_end"), [(3, (0, 2, 3)), (2, (0, 2))])
def test_a_replacement(workers, at_the_end, overlap):
    results = fptps.LocalCluster(workers, 1, 90, {"FPTPS_RECOVERY": "1"}).run(train, overlap, 5, at_the_end)
    assert results[1] is None
    first, steps, took_part, came = results[0]
    assert (first, tuple(took_part)) == (0, at_the_end)
    assert came[0] >= 7
    assert came[1:] == [steps, list(at_the_end)]


@pytest.mark.parametrize(("workers", "servers"), [(3, 1), (2, 0)])
def test_a_replacement_where_the_optimizer_is_on_the_servers(workers, servers):
    at_the_end = tuple(rank for rank in range(workers + 1) if rank != 1)
    cluster = fptps.LocalCluster(workers, servers, 90, {"FPTPS_RECOVERY": "1", "FPTPS_REPLICAS": "1"})
    _, steps, took_part, came = cluster.run(train, "servers", 5, at_the_end)[0]
    assert tuple(took_part) == at_the_end
    assert came[1:] == [steps, list(at_the_end)]


def test_one_more_than_at_the_start():
    """The worker was alone: it exchanges gradients from the start all the same."""
    environment = {"FPTPS_RECOVERY": "1", "FPTPS_MAX_WORKERS": "2"}
    [(_, steps, _, came)] = fptps.LocalCluster(1, 0, 90, environment).run(train, "forward", 3, (0, 1))
    assert came[1:] == [steps, [0, 1]]


def test_wrong_use():
    ours.init()
    model = torch.nn.Linear(2, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with pytest.raises(TypeError, match="a DistributedOptimizer is expected, as prepare"):
            ours.State(model, plain)
        _, optimizer = ours.prepare(model, plain)
        with pytest.raises(ValueError, match="'admit' cannot be the name of a value"):
            ours.State(model, optimizer, admit=1)
        state = ours.State(model, optimizer, step=3)
        assert state.admit() is False
        assert state.step == 3
    finally:
        ours.shutdown()
