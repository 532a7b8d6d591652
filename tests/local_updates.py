"""What the tests of fptps.torch.local share: a small model, and its training on the workers of one process."""

from __future__ import annotations

import hashlib

import torch
from helpers import in_threads

TRAINERS = 3
ETA = 0.1
KEYS_OF_A_TRAINING = 10


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
            assert_same_state(local.state_dict(), resume[rank]["local"])
            number = resume[rank]["number"]

        def sent(steps):
            run.sent[rank].append(steps)
            message, _ = local._current.exchange.sent
            run.messages[rank].append(message.decode() if hasattr(message, "decode") else message.numpy().copy())

        def ended(round):
            run.w[rank].append(local.w.clone())
            run.hashes[rank].append(hashlib.sha256(local.w.numpy().tobytes()).hexdigest())
            if rank == 0:
                fragment = local._fragments[(round.number - 1) % len(local._fragments)]
                run.totals.append(fragment.exchange.total.clone())
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
                if trains and not local._current.exchange.in_flight:
                    local._current.exchange.skip()  # the call before has opened the next round; this ends it
                break
        run.models[rank] = model

    in_threads(*[lambda kv=kv: work(kv) for kv in workers])
    return run


@torch.no_grad()
def put(tensors, vector):
    for t in tensors:
        t.copy_(vector[: t.numel()].view(t.shape))
        vector = vector[t.numel() :]


def assert_same_state(got, wanted):
    """Of nested dicts, lists and tensors."""
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(got, wanted)
    elif isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_same_state(got[key], value)
    elif isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted)
        for pair in zip(got, wanted):
            assert_same_state(*pair)
    else:
        assert got == wanted


def assert_all_hold_the_same(run):
    assert len(run.hashes[0]) > 3
    assert all(hashes == run.hashes[0] for hashes in run.hashes)
    for model in run.models:
        assert torch.equal(flat(trained(model)), flat(trained(run.models[0])))
        assert torch.equal(flat(statistics(model)), flat(statistics(run.models[0])))
        assert torch.equal(model[3].bias, run.models[0][3].bias)
