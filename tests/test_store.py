"""The store: optimisers on the aggregators against torch.optim, and what each consistency promises, in clusters of
processes."""

import os
import signal
import time

import numpy as np
import pytest
from helpers import in_threads, pass_gate

import fptps
from fptps import optim

STEPS = 100
SIZES = (1, 4095, 2 * 4096 + 17)
"""Elements of float32: one, not quite a packet, and three packets."""

OPTIMISERS = [
    optim.SGD(0.1),
    optim.SGD(0.1, weight_decay=0.01),
    optim.SGD(0.05, momentum=0.9),
    optim.SGD(0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    optim.Adam(),
    optim.Adam(0.01, betas=(0.3, 0.9), eps=1e-3, weight_decay=0.1),
    optim.AdamW(0.01),
    optim.Adagrad(0.1),
    optim.Adagrad(0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5),
]
TENSORS = [
    (optimiser, size, np.dtype(dtype), op)
    for size, dtype, op in (
        *[(s, "float32", "sum") for s in SIZES],
        (8209, "float32", "mean"),
        (8209, "float64", "mean"),
    )
    for optimiser in OPTIMISERS
]
"""By key."""


def gradient(key, rank, step):
    """What a rank pushes in a step; None where it skips."""
    if step % 10 == 9 or (rank == 1 and step % 7 == 6):
        return None
    _, size, dtype, _ = TENSORS[key]
    return np.random.default_rng((key, rank, step)).standard_normal(size).astype(dtype)


def rate(optimiser, step):
    """The learning rate changes twice on the way. It travels as float32."""
    return float(np.float32(optimiser.lr / (1 + step // 40))) if step >= 40 else optimiser.lr


def initial(key):
    """The weights to begin with."""
    _, size, dtype, _ = TENSORS[key]
    return np.random.default_rng(key).standard_normal(size).astype(dtype)


def train():
    """In a worker: every tensor's STEPS steps; gives the weights."""
    with fptps.KVWorker() as kv:
        weights = [initial(key) for key in range(len(TENSORS))]
        for key, array in enumerate(weights):
            kv.init(key, array if kv.rank == 0 else np.zeros_like(array))
        for optimiser in OPTIMISERS:
            kv.set_optimizer(optimiser, [key for key, tensor in enumerate(TENSORS) if tensor[0] is optimiser])
        for step in range(STEPS):
            tickets = []
            for key, (optimiser, _, _, op) in enumerate(TENSORS):
                if step in (40, 80):
                    kv.set_learning_rate(rate(optimiser, step), [key])
                if (array := gradient(key, kv.rank, step)) is None:
                    kv.skip(key)
                    tickets.append(kv.pull(key, out=weights[key]))
                else:
                    tickets.append(kv.push_pull(key, array, out=weights[key], op=op))
            for ticket in tickets:
                ticket.result()
        return weights


def with_torch(key):
    """The same steps by torch.optim, in one process."""
    import torch

    optimiser, _, dtype, op = TENSORS[key]
    parameter = torch.nn.Parameter(torch.from_numpy(initial(key)))
    other = getattr(torch.optim, type(optimiser).__name__)([parameter], **vars(optimiser))
    for step in range(STEPS):
        gradients = [g for g in (gradient(key, rank, step) for rank in range(2)) if g is not None]
        if not gradients:
            continue
        sum_ = sum(gradients)
        parameter.grad = torch.from_numpy(sum_ / dtype.type(2) if op == "mean" else sum_)
        other.param_groups[0]["lr"] = rate(optimiser, step)
        other.step()
    return parameter.detach().numpy()


@pytest.mark.demo
def test_hundred_steps_are_those_of_torch():
    """Two versions that both round. A step rounds up to ten times, by half a unit in the last place of numbers of the
    weights' size; the errors add up by chance: sqrt(1000) of them, and as much again for the worst of all elements, in
    each version."""
    with fptps.LocalCluster(2, 2).start(train) as run:
        first, second = run.results()
    for key, (optimiser, size, dtype, op) in enumerate(TENSORS):
        assert first[key].tobytes() == second[key].tobytes(), (optimiser, size, op)
        expected = with_torch(key)
        rounding = 4 * 1000**0.5 * np.finfo(dtype).eps / 2
        largest = max(1, np.abs(expected).max())  # one element alone may end near 0, and did not begin there
        assert np.abs(first[key] - expected).max() < rounding * largest, (optimiser, size, dtype, op)


ROUNDS = 25
ELEMENTS = 5000  # three packets of int64


def counting(consistency):
    """In a worker: pushes ones where index modulo num_workers is the rank, at a pace of its own. Every packet of a
    value then encodes how many rounds of each worker are in it; returns the counts: by round, by packet, by worker."""
    with fptps.KVWorker() as kv:
        n = kv.num_workers
        kv.init(0, np.zeros(ELEMENTS, np.int64), consistency=consistency)
        own = np.arange(ELEMENTS) % n == kv.rank
        seen = []

        def look(value):
            packets = [value[at : at + 2048] for at in range(0, ELEMENTS, 2048)]
            starts = range(0, ELEMENTS, 2048)
            counts = [[set(p[(r - s) % n :: n].tolist()) for r in range(n)] for p, s in zip(packets, starts)]
            assert all(len(c) == 1 for packet in counts for c in packet)
            seen.append([[c.pop() for c in packet] for packet in counts])

        for _ in range(ROUNDS):
            if kv.rank:
                np.sort(np.random.default_rng(0).random(20_000 * kv.rank))  # the higher the rank, the slower
            look(kv.push_pull(0, own.astype(np.int64)).result())
        kv.barrier()
        kv.skip(0)
        look(kv.pull(0).result())
        kv.barrier()
        assert kv.clock(0) == [ROUNDS + 1] * n
        return seen


@pytest.mark.usefixtures("van")
@pytest.mark.parametrize("consistency", ["async", fptps.Bounded(0), fptps.Bounded(2)])
def test_no_push_is_lost_and_no_worker_runs_ahead(consistency):
    with fptps.LocalCluster(3, 2).start(lambda: counting(consistency)) as run:
        for rank, (*rounds, last) in enumerate(run.results()):
            assert last == [[ROUNDS] * 3] * 3
            for number, packets in enumerate(rounds, 1):
                for counts in packets:
                    assert counts[rank] == number
                    if consistency != "async":
                        assert max(counts) - min(counts) <= consistency.rounds


def test_mismatch_of_consistencies():
    def work():
        with fptps.KVWorker() as kv:
            kv.init(0, np.ones(3), consistency=["sync", fptps.Bounded(3)][kv.rank])

    with fptps.LocalCluster(2, 1).start(work) as run:
        errors = [outcome.error for outcome in run.outcomes()]
    for error in errors:
        assert isinstance(error, fptps.MismatchError)
        assert "worker 0 has float64 of shape (3,), sync" in str(error)
        assert "worker 1 has float64 of shape (3,), bounded:3" in str(error)


def test_death_while_a_worker_waits_for_a_slower_one(gate):
    def work():
        kv = fptps.KVWorker()
        kv.init(0, np.ones(50_000), consistency=fptps.Bounded(0))
        if kv.rank == 1:
            kv.barrier()  # which never ends
        ticket = kv.push(0, np.ones(50_000))
        pass_gate(address)
        begun = time.monotonic()
        try:
            ticket.result()
        except fptps.NodeLostError as error:
            return str(error), time.monotonic() - begun

    address = gate.address
    with fptps.LocalCluster(2, 1).start(work) as run:
        gate.wait()
        os.kill(run.process("worker", 1).pid, signal.SIGKILL)
        gate.open()
        text, seconds = run.outcomes()[0].value
    assert "worker 1" in text
    assert seconds < 5.0


@pytest.mark.parametrize("consistency", ["sync", fptps.Bounded(1), "async"])
def test_alone(alone, consistency):
    alone.init(0, np.float32([8, 16]), consistency=consistency)
    alone.set_optimizer(optim.SGD(0.5, momentum=0.5))
    one = np.ones(2, np.float32)
    assert alone.push_pull(0, one, op="mean").result().tolist() == [7.5, 15.5]
    alone.set_learning_rate(2)
    alone.push(0, one)
    assert alone.pull(0).result().tolist() == [4.5, 12.5]
    alone.skip(0)
    assert alone.pull(0).result().tolist() == [4.5, 12.5]
    alone.set_optimizer(optim.SGD(1))
    assert alone.push_pull(0, one).result().tolist() == [3.5, 11.5]


def test_pushes_add_up_without_an_optimiser(alone):
    alone.init(1, np.int16([1, 2]), consistency="async")
    for round_ in range(1, 4):
        assert alone.push_pull(1, np.int16([1, 1])).result().tolist() == [1 + round_, 2 + round_]


@pytest.mark.parametrize("text", ["", "eventual", "bounded", "bounded:", "bounded:-1", "bounded:3", 3])
def test_unknown_consistency(alone, text):
    with pytest.raises(ValueError, match=r"fptps\.Bounded\(n\)"):
        alone.init(0, np.ones(3), consistency=text)
    alone.init(0, np.ones(3), consistency=fptps.Bounded(32768))


def test_optimiser_refused(alone):
    sgd = optim.SGD(0.1)
    with pytest.raises(ValueError, match="no key is initialised"):
        alone.set_optimizer(sgd)
    alone.init(0, np.ones(3))
    alone.init(1, np.ones(3))
    alone.init(2, np.ones(3, np.int32))
    alone.push(1, np.ones(3)).result()
    for error, match, call in [
        (TypeError, "key 2 holds int32", lambda: alone.set_optimizer(sgd)),
        (TypeError, "an optimiser of fptps.optim", lambda: alone.set_optimizer("SGD")),
        (ValueError, "key 1 was pushed without an optimiser", lambda: alone.set_optimizer(sgd, keys=[0, 1])),
        (ValueError, "no key is named", lambda: alone.set_optimizer(sgd, keys=[])),
        (ValueError, "a whole number", lambda: alone.set_optimizer(sgd, keys=[-1])),
        (KeyError, "key 7", lambda: alone.set_optimizer(sgd, keys=[0, 7])),
        (ValueError, "nesterov", lambda: alone.set_optimizer(optim.SGD(0.1, nesterov=True), keys=[0])),
        (ValueError, "betas", lambda: alone.set_optimizer(optim.Adam(betas=(0.9, 1.0)), keys=[0])),
        (ValueError, "key 0 has no optimiser", lambda: alone.set_learning_rate(0.1, keys=[0])),
        (ValueError, "has no optimiser", lambda: alone.set_learning_rate(0.1)),
        (ValueError, "finite", lambda: alone.set_learning_rate(float("nan"))),
        (ValueError, "float32", lambda: alone.set_learning_rate(1e39)),
    ]:
        with pytest.raises(error, match=match):
            call()
    alone.set_optimizer(sgd, keys=[0])
    assert alone.push_pull(0, np.ones(3)).result().tolist() == [0.9] * 3
    assert alone.push_pull(1, np.ones(3)).result().tolist() == [1.0] * 3


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad])
def test_hyper_parameters_refused(kind, wrong):
    for name, value in vars(kind()).items():
        with pytest.raises(ValueError, match=name):
            kind(**{name: (0.9, wrong) if isinstance(value, tuple) else wrong})


def test_optimiser_while_a_round_is_under_way(pair):
    first, second = pair
    in_threads(*[lambda kv=kv: kv.init(0, np.zeros(3)) for kv in pair])
    in_threads(*[lambda kv=kv: kv.set_optimizer(optim.SGD(1.0)) for kv in pair])
    ticket = first.push(0, np.ones(3))
    with pytest.raises(fptps.BusyError, match="key 0"):
        first.set_optimizer(optim.SGD(0.5))
    second.set_optimizer(optim.SGD(0.5))  # has no effect
    second.skip(0)
    ticket.result()
    assert second.pull(0).result().tolist() == [-1.0] * 3
