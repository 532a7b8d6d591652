"""fptps.torch.local: each algorithm against its equations, written down a second time in plain loops over gradients."""

from __future__ import annotations

import os
import random

import pytest
from helpers import in_threads, workers_of_one_process

import fptps
from fptps.codec import Quantizer

torch = pytest.importorskip("torch")
from local_updates import (  # noqa: E402
    ETA,
    KEYS_OF_A_TRAINING,
    TRAINERS,
    assert_all_hold_the_same,
    flat,
    loss_of,
    net,
    put,
    statistics,
    train,
    trained,
)

from fptps.torch.local import DQLOSP, LOSP, OSP, DiLoCo, LocalSGD, Nesterov, StreamingDiLoCo  # noqa: E402
from fptps.torch.local._exchange import Exchange  # noqa: E402

pytestmark = pytest.mark.demo


@pytest.fixture
def scripted(monkeypatch):
    """Whether a sum is here no longer depends on the network, but on a dice of each process."""
    dice = {}

    def arrived(self):
        return dice.setdefault(id(self), random.Random(self._kv.rank)).random() < 0.3

    monkeypatch.setattr(Exchange, "arrived", arrived)


def by_the_equations(sent, c=None, outer=None):
    """w after each round, and the statistics at the end. sent[i][t]: the steps of worker i's update of round t.

    c: None for algorithms that wait, else the compensation gamma / eta. G is the sum of the gradients.
    """
    w = flat(trained(net(0)))
    momentum = torch.zeros_like(w)
    nets = [net(0) for _ in sent]
    numbers = [0] * len(sent)
    ws, stats = [], flat(statistics(nets[0]))
    for t in range(len(sent[0])):
        Gs, all_stats = [], []
        for i, model in enumerate(nets):
            G = torch.zeros_like(w)
            for _ in range(sent[i][t]):
                model.zero_grad()
                loss_of(model, i, numbers[i]).backward()
                numbers[i] += 1
                g = flat([p.grad for p in trained(model)])
                G += g
                put(trained(model), flat(trained(model)) - ETA * g)
            Gs.append(G)
            all_stats.append(flat(statistics(model)))
            if c is not None:  # goes on while G is under way, from the w that it has
                put(trained(model), w - c * ETA * G)
                put(statistics(model), stats)
        step = ETA * sum(Gs) / len(Gs)
        if outer:
            momentum = outer.momentum * momentum + step
            step = outer.rate * (step + outer.momentum * momentum)
        w = w - step
        ws.append(w)
        stats = sum(all_stats) / len(all_stats)
        for model in nets:
            if c is None:
                put(trained(model), w)
                put(statistics(model), stats)
    return ws, stats


@pytest.fixture(scope="module")
def cluster():
    with workers_of_one_process(TRAINERS + 1) as workers:
        yield workers


@pytest.fixture
def first_key(key):
    return 1000 * (key + 1)


OUTER = Nesterov(0.7, 0.9)
ALGORITHMS = {
    "LocalSGD": (lambda *a: LocalSGD(*a[:3], steps=4, total_steps=100, first_key=a[3]), None, None),
    "DiLoCo": (lambda *a: DiLoCo(*a[:3], steps=4, total_steps=100, outer=OUTER, first_key=a[3]), None, OUTER),
    "OSP": (lambda *a: OSP(*a[:3], steps=5, total_steps=100, first_key=a[3]), 0.0, None),
    "LOSP": (lambda *a: LOSP(*a[:3], steps=5, total_steps=100, compensation=1.5, first_key=a[3]), 1.5, None),
    "DiLoCo, overlapped": (
        lambda *a: DiLoCo(*a[:3], steps=5, total_steps=100, outer=OUTER, overlap=True, first_key=a[3]),
        1.0,
        OUTER,
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_follows_its_equations(cluster, first_key, scripted, name):
    make, c, outer = ALGORITHMS[name]
    run = train(cluster, make, first_key)
    assert_all_hold_the_same(run)
    rounds = len(run.w[0])
    sent = [steps[:rounds] for steps in run.sent[:TRAINERS]]
    assert sum(map(sum, sent)) >= 100
    if c is None:
        assert all(steps == [4] * rounds for steps in sent)
    else:
        assert {1, 5} <= {n for steps in sent for n in steps} <= {1, 2, 3, 4, 5}
        assert sent[0] != sent[1]
    ws, stats = by_the_equations(sent, c, outer)
    for got, wanted in zip(run.w[0], ws):
        assert float((got.double() - wanted).norm() / wanted.norm()) < 1e-5
    assert float((flat(statistics(run.models[0])) - stats).norm() / stats.norm()) < 1e-5


@pytest.mark.parametrize("name", ["OSP", "StreamingDiLoCo"])
def test_the_network_works_while_the_worker_computes(cluster, first_key, name):
    """A round goes from sending to its sum while no worker calls fptps: each spins where it would compute."""

    def work(kv):
        model, trains = net(0), kv.rank < TRAINERS
        parts = kv, model, torch.optim.SGD(trained(model), lr=ETA) if trains else None
        if name == "OSP":
            local = OSP(*parts, steps=5, total_steps=30, first_key=first_key)
        else:
            local = StreamingDiLoCo(*parts, steps=1, total_steps=30, fragments=2, first_key=first_key)
        rounds = []
        local.on_round = rounds.append
        while not local.finished:
            if not trains:
                local.follow()
                continue
            model.zero_grad()
            loss_of(model, kv.rank, 0).backward()
            local.step()
            while not local.finished and not local._current.exchange.arrived():
                os.sched_yield()
        return [round.steps for round in rounds]

    *trainers, _ = in_threads(*[lambda kv=kv: work(kv) for kv in cluster])
    assert trainers == [[1] * 10] * TRAINERS  # no step more: the sum had arrived


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize(("bits", "stated"), [(8, None), (8, 0.5), (16, 0.5), (3, None)])
def test_dqlosp_follows_its_equations(cluster, first_key, scripted, bits, stated, feedback):
    def make(*a):
        quantizer = Quantizer(bits, stated)
        return DQLOSP(*a[:3], steps=5, total_steps=100, quantizer=quantizer, error_feedback=feedback, first_key=a[3])

    run = train(cluster, make, first_key)
    assert_all_hold_the_same(run)
    levels = 2 ** (bits - 1) - 1
    w = flat(trained(net(0))).float()
    for t, after in enumerate(run.w[0]):
        exact = sum(torch.from_numpy(run.messages[i][t]) for i in range(TRAINERS))
        limit = float(exact.abs().max()) if stated is None else TRAINERS * stated
        mean = run.totals[t]
        assert float((mean * TRAINERS - exact).abs().max()) < 1.01 * limit / levels
        assert torch.equal(after, w - mean)
        w = after
    for i in range(TRAINERS):
        assert_sent_what_its_steps_moved(run, i, levels, stated, feedback)


def assert_sent_what_its_steps_moved(run, i, levels, stated, feedback):
    """Each message of worker i differs by at most one step of the quantiser from the update computed again here."""
    model, number, w, stats = net(0), 0, flat(trained(net(0))), flat(statistics(net(0)))
    begin, residual = w, torch.zeros_like(w)
    for steps, message, after, stats_after in zip(run.sent[i], run.messages[i], run.w[0], run.statistics):
        for _ in range(steps):
            model.zero_grad()
            loss_of(model, i, number).backward()
            number += 1
            put(trained(model), flat(trained(model)) - ETA * flat([p.grad for p in trained(model)]))
        d = begin - flat(trained(model))
        wanted = d + residual if feedback else d
        limit = float(wanted.abs().max()) if stated is None else stated
        decoded = torch.from_numpy(message).double()
        assert float((decoded - wanted.clamp(-limit, limit)).abs().max()) < 1.01 * limit / levels + 1e-6
        residual = wanted - decoded
        begin = w - d  # compensated in full
        put(trained(model), begin)
        put(statistics(model), stats)
        w, stats = after.double(), stats_after


RESUMED = {
    "LocalSGD": (LocalSGD, {}),
    "OSP": (OSP, {}),
    "LOSP": (LOSP, {"compensation": 1.5}),
    "DQLOSP": (DQLOSP, {"quantizer": Quantizer(16), "error_feedback": True}),
    "DiLoCo": (DiLoCo, {}),
    "DiLoCo, overlapped": (DiLoCo, {"overlap": True}),
    "StreamingDiLoCo": (StreamingDiLoCo, {"fragments": 3, "delay": 2}),
    "StreamingDiLoCo, saved under way": (StreamingDiLoCo, {"fragments": 3, "delay": 3}),
}


@pytest.mark.parametrize("name", RESUMED)
def test_goes_on_where_it_was_saved(cluster, first_key, monkeypatch, name):
    """A run that is saved, and goes on with other keys as in a new cluster, against one that is never interrupted."""
    # Always after as many steps.
    monkeypatch.setattr(Exchange, "arrived", lambda self: False)
    kind, settings = RESUMED[name]

    def make(*a):
        return kind(*a[:3], steps=3, total_steps=80, first_key=a[3], **settings)

    whole = train(cluster, make, first_key)
    first = train(cluster, make, first_key + KEYS_OF_A_TRAINING, until=4)
    second = train(cluster, make, first_key + 2 * KEYS_OF_A_TRAINING, resume=first.states)
    assert len(first.w[0]) + len(second.w[0]) == len(whole.w[0])
    assert_all_hold_the_same(second)
    if name == "DQLOSP":  # the sums are rounded at random: equal but for that
        assert torch.allclose(second.w[0][-1], whole.w[0][-1], atol=0.01)
    else:
        for got, wanted in zip(first.w[0] + second.w[0], whole.w[0]):
            assert torch.allclose(got, wanted, atol=1e-6)


def test_states_of_different_rounds_are_refused_by_name(cluster, first_key):
    def load(kv):
        local = LocalSGD(
            kv, net(0), torch.optim.SGD(net(0).parameters(), ETA), steps=1, total_steps=9, first_key=first_key
        )
        state = local.state_dict()
        state["round"] = 7 if kv.rank == 2 else 6
        with pytest.raises(fptps.MismatchError, match="worker 2 has another round than worker 0"):
            local.load_state_dict(state)

    in_threads(*[lambda kv=kv: load(kv) for kv in cluster])


@pytest.mark.parametrize("what", ["algorithm", "model"])
def test_worker_that_differs_is_refused_by_name(cluster, first_key, what):
    def start(kv):
        model = net(0) if what != "model" or kv.rank != 1 else torch.nn.Linear(2, 2)
        steps = 6 if what == "algorithm" and kv.rank == 1 else 5
        optimizer = torch.optim.SGD(trained(model) if what != "model" else model.parameters(), ETA)
        with pytest.raises(fptps.MismatchError, match=f"worker 1 has another {what} than worker 0"):
            OSP(kv, model, optimizer, steps=steps, total_steps=10, first_key=first_key)

    in_threads(*[lambda kv=kv: start(kv) for kv in cluster])


def test_alone_it_is_the_optimizer(alone):
    model, wanted = net(0), net(0)
    local = OSP(alone, model, torch.optim.SGD(trained(model), ETA), steps=3, total_steps=7)
    number = 0
    while not local.finished:
        model.zero_grad()
        loss_of(model, 0, number).backward()
        number += 1
        local.step()
    assert local.iterations == 7 or local.iterations > 7
    with pytest.raises(RuntimeError, match="after the end"):
        local.step()
    with pytest.raises(RuntimeError, match="with an optimizer"):
        OSP(alone, wanted, torch.optim.SGD(trained(wanted), ETA), steps=3, total_steps=7, first_key=50).follow()


@pytest.mark.parametrize("device_dtype", [torch.float64, torch.bfloat16])
def test_other_floats(cluster, first_key, device_dtype):
    def work(kv):
        model = torch.nn.Linear(3, 2).to(device_dtype)
        local = LocalSGD(
            kv, model, torch.optim.SGD(model.parameters(), ETA), steps=2, total_steps=16, first_key=first_key
        )
        while not local.finished:
            model.zero_grad()
            model(torch.full((1, 3), float(kv.rank), dtype=device_dtype)).sum().backward()
            local.step()
        return flat(model.parameters())

    results = in_threads(*[lambda kv=kv: work(kv) for kv in cluster])
    assert all(torch.equal(result, results[0]) for result in results)
