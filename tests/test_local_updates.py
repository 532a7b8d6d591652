"""fptps.torch.local: each algorithm against its equations, written down a second time in plain loops over gradients."""

from __future__ import annotations

import hashlib
import random

import pytest
from helpers import in_threads, workers_of_one_process

import fptps
from fptps.codec import Quantizer

torch = pytest.importorskip("torch")
from fptps.torch.local import DQLOSP, LOSP, OSP, DiLoCo, LocalSGD, Nesterov  # noqa: E402
from fptps.torch.local.algorithm import Act, Algorithm, decide  # noqa: E402
from fptps.torch.local.exchange import Exchange  # noqa: E402

pytestmark = pytest.mark.demo

TRAINERS = 3
ETA = 0.1
KEYS_OF_A_TRAINING = 4


def net(seed):
    """Batch normalisation, a frozen parameter and an integer buffer included."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    source = torch.Generator().manual_seed(seed)  # not the global one, which all threads share
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=source) / 2)
    model[3].bias.requires_grad = False
    return model


def loss_of(model, rank, number):
    """The loss of a worker's batch, other ones on every worker."""
    source = torch.Generator().manual_seed(1000 * rank + number)
    x = torch.randn(8, 4, generator=source) + rank
    return torch.nn.functional.cross_entropy(model(x), torch.randint(3, (8,), generator=source))


def flat(tensors):
    return torch.cat([t.detach().double().flatten() for t in tensors])


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def statistics(model):
    return [b for b in model.buffers() if b.is_floating_point()]


class Trained:
    """What a run has to show: per round the steps of each worker's update, w and the statistics in every process."""

    def __init__(self, processes):
        self.sent = [[] for _ in range(processes)]
        self.w = [[] for _ in range(processes)]
        self.hashes = [[] for _ in range(processes)]
        self.messages = [[] for _ in range(processes)]
        self.totals = []
        self.statistics = []
        self.models = [None] * processes
        self.states = [None] * processes


@pytest.fixture
def scripted(monkeypatch):
    """Whether a sum is here no longer depends on the network, but on a dice of each process."""
    dice = {}

    def arrived(self):
        return dice.setdefault(id(self), random.Random(self._kv.rank)).random() < 0.3

    monkeypatch.setattr(Exchange, "arrived", arrived)


def train(workers, make, first_key=0, until=None, resume=None):
    """Trains on all workers but the last, which follows. make(kv, model, optimizer, first_key) is the algorithm.

    until: the round in which to save everything and stop. resume: what was saved then.
    """
    run = Trained(len(workers))

    def work(kv):
        rank, trains = kv.rank, kv.rank < len(workers) - 1
        model = net(seed=rank)  # others' are overwritten by rank 0's
        optimizer = torch.optim.SGD(trained(model), lr=ETA) if trains else None
        local = make(kv, model, optimizer, first_key)
        number = 0
        if resume:
            model.load_state_dict(resume[rank]["model"])
            local.load_state_dict(resume[rank]["local"])
            number = resume[rank]["number"]

        def sent(steps):
            run.sent[rank].append(steps)
            message, _ = local._exchange.sent
            run.messages[rank].append(message.decode() if hasattr(message, "decode") else message.numpy().copy())

        def ended(round):
            run.w[rank].append(local.w.clone())
            run.hashes[rank].append(hashlib.sha256(local.w.numpy().tobytes()).hexdigest())
            if rank == 0:
                run.totals.append(local._exchange.total.clone())
                run.statistics.append(local._statistics.clone())

        local.on_send, local.on_round = sent, ended
        while not local.finished:
            if trains:
                model.zero_grad()
                loss_of(model, rank, number).backward()
                number += 1
                local.step()
            else:
                local.follow()
            if until is not None and local.round == until:
                weights = {name: t.clone() for name, t in model.state_dict().items()}
                run.states[rank] = {"model": weights, "local": local.state_dict(), "number": number}
                if trains and not local._exchange.in_flight:
                    local._exchange.skip()  # what follows has opened the next round: nothing is left open
                break
        run.models[rank] = model

    in_threads(*[lambda kv=kv: work(kv) for kv in workers])
    return run


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


@torch.no_grad()
def put(tensors, vector):
    for t in tensors:
        t.copy_(vector[: t.numel()].view(t.shape))
        vector = vector[t.numel() :]


def assert_all_hold_the_same(run):
    assert len(run.hashes[0]) > 3
    assert all(hashes == run.hashes[0] for hashes in run.hashes)
    for model in run.models:
        assert torch.equal(flat(trained(model)), flat(trained(run.models[0])))
        assert torch.equal(flat(statistics(model)), flat(statistics(run.models[0])))
        assert torch.equal(model[3].bias, run.models[0][3].bias)


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
    """Each message of worker i is within a step of the quantiser of what its steps, repeated here, give."""
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
        told = torch.from_numpy(message).double()
        assert float((told - wanted.clamp(-limit, limit)).abs().max()) < 1.01 * limit / levels + 1e-6
        residual = wanted - told
        begin = w - d  # compensated in full
        put(trained(model), begin)
        put(statistics(model), stats)
        w, stats = after.double(), stats_after


@pytest.mark.parametrize("name", ["LocalSGD", "LOSP", "DQLOSP"])
def test_goes_on_where_it_was_saved(cluster, first_key, scripted, monkeypatch, name):
    """A run that is saved, and goes on with other keys as in a new cluster, against one that is never interrupted."""
    # By round and step instead of a dice, which would not be saved.
    monkeypatch.setattr(Exchange, "arrived", lambda self: False)

    def make(*a):
        if name == "DQLOSP":
            return DQLOSP(*a[:3], steps=3, total_steps=80, quantizer=Quantizer(16), error_feedback=True, first_key=a[3])
        return {"LocalSGD": LocalSGD, "LOSP": LOSP}[name](*a[:3], steps=3, total_steps=80, first_key=a[3])

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
def test_who_differs_is_refused_by_name(cluster, first_key, what):
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


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"steps": 0}, "steps is 0, but at least 1"),
        ({"total_steps": 0}, "total_steps is 0, but at least 1"),
        ({"error_feedback": True}, "there is no quantizer"),
    ],
)
def test_settings_that_make_no_sense(settings, text):
    with pytest.raises(ValueError, match=text):
        Algorithm(**{"steps": 1, "total_steps": 1, **settings})


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


def test_the_decisions():
    """Every state of a worker, and what it does."""
    waits, overlaps = Algorithm(steps=3, total_steps=9), Algorithm(steps=3, total_steps=9, overlap=True)
    for steps in range(4):
        for in_flight in (False, True):
            for arrived in (False, True):
                expected = Act.APPLY if in_flight else Act.SEND if steps == 3 else Act.STEP
                assert decide(waits, steps, in_flight, arrived) is expected
                if steps == 0 or (in_flight and not (arrived or steps == 3)):
                    expected = Act.STEP
                else:
                    expected = Act.APPLY if in_flight else Act.SEND
                assert decide(overlaps, steps, in_flight, arrived) is expected
