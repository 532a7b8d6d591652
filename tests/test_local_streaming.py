"""StreamingDiLoCo against its equations, in the paper's terms."""

from __future__ import annotations

import pytest
from helpers import workers_of_one_process

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

from fptps.torch.local import DiLoCo, Nesterov, StreamingDiLoCo  # noqa: E402

pytestmark = pytest.mark.demo

OUTER = Nesterov(0.7, 0.9)


@pytest.fixture(scope="module")
def cluster():
    with workers_of_one_process(TRAINERS + 1) as workers:
        yield workers


@pytest.fixture
def first_key(key):
    return 1000 * (key + 1)


# Which of net()'s trained parameters, of 24, 6, 6, 6 and 18 numbers, are in which fragment.
FRAGMENTS = {1: [[0, 1, 2, 3, 4]], 2: [[0, 1], [2, 3, 4]], 3: [[0], [1, 2, 3], [4]]}


def by_the_equations_of_streaming(rounds, fragments, steps, delay, mixing):
    """As by_the_equations, step t by step t of all workers at once, in the paper's terms; theta is the global model."""
    H, tau, alpha = steps * fragments, delay, mixing
    nets = [net(0) for _ in range(TRAINERS)]
    theta = [p.detach().double() for p in trained(nets[0])]
    momentum = [torch.zeros_like(part) for part in theta]
    under_way, ws = {}, []
    stats = flat(statistics(nets[0]))

    def send(t):
        for number, members in enumerate(FRAGMENTS[fragments]):
            if t >= steps * (number + 1) and (t - steps * (number + 1)) % H == 0:
                deltas = [[theta[j] - trained(model)[j].detach() for j in members] for model in nets]
                means = [sum(parts) / len(nets) for parts in zip(*deltas)]
                under_way[t] = members, means, sum(flat(statistics(model)) for model in nets) / len(nets)

    def receive(t):
        nonlocal stats
        if t - tau not in under_way:
            return
        members, means, stats = under_way.pop(t - tau)
        for j, mean in zip(members, means):
            momentum[j] = OUTER.momentum * momentum[j] + mean
            theta[j] = theta[j] - OUTER.rate * (mean + OUTER.momentum * momentum[j])
            for model in nets:
                own = trained(model)[j]
                put([own], (alpha * own.double() + (1 - alpha) * theta[j]).flatten())
        for model in nets:
            put(statistics(model), stats)
        ws.append(flat(theta))

    t = 0
    while len(ws) < rounds:
        for i, model in enumerate(nets):
            model.zero_grad()
            loss_of(model, i, t).backward()
            put(trained(model), flat(trained(model)) - ETA * flat([p.grad for p in trained(model)]))
        t += 1
        for act in (receive, send) if tau else (send, receive):
            act(t)
    return ws, stats


@pytest.mark.parametrize(("quantizer", "tolerance"), [(None, 1e-5), (Quantizer(16), 1e-3)])
@pytest.mark.parametrize(
    ("fragments", "steps", "delay", "mixing"),
    [(3, 4, 2, 0.5), (2, 3, 3, 0.25), (3, 2, 0, 0.0), (1, 4, 1, 0.5)],
)
def test_streaming_follows_its_equations(cluster, first_key, fragments, steps, delay, mixing, quantizer, tolerance):
    settings = {"fragments": fragments, "steps": steps, "delay": delay, "mixing": mixing, "quantizer": quantizer}
    run = train(
        cluster, lambda *a: StreamingDiLoCo(*a[:3], total_steps=100, outer=OUTER, first_key=a[3], **settings), first_key
    )
    assert_all_hold_the_same(run)
    rounds = len(run.w[0])
    sizes = [sum((24, 6, 6, 6, 18)[j] for j in members) for members in FRAGMENTS[fragments]]
    for i in range(TRAINERS):
        assert run.sent[i][:rounds] == [steps] * rounds
        assert [len(message) for message in run.messages[i]][:rounds] == [sizes[k % fragments] for k in range(rounds)]
    ws, stats = by_the_equations_of_streaming(rounds, fragments, steps, delay, mixing)
    for got, wanted in zip(run.w[0], ws):
        assert float((got.double() - wanted).norm() / wanted.norm()) < tolerance
    assert float((flat(statistics(run.models[0])) - stats).norm() / stats.norm()) < tolerance


def test_streaming_of_one_fragment_at_once_is_diloco(cluster, first_key):
    settings = {"steps": 4, "total_steps": 60, "outer": OUTER}
    whole = train(cluster, lambda *a: DiLoCo(*a[:3], first_key=a[3], **settings), first_key)
    streamed = train(
        cluster,
        lambda *a: StreamingDiLoCo(*a[:3], fragments=1, delay=0, mixing=0.0, first_key=a[3], **settings),
        first_key + KEYS_OF_A_TRAINING,
    )
    for got, wanted in zip(streamed.w[0], whole.w[0]):
        assert torch.allclose(got, wanted, atol=1e-6)  # equal but for the order in which the workers are added up
