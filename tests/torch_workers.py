"""What the tests of fptps.torch share: workers that are threads of one process, a model, and the dumb computation."""

from __future__ import annotations

import threading
import traceback
from contextlib import contextmanager

import torch
import torch._dynamo  # the first step of an optimizer would import it
from helpers import in_threads, workers_of_one_process
from torch import nn

from fptps.torch import _process


class _OfThread:
    """Takes the place of the module's list of what init() has made: each thread has its own."""

    def __init__(self):
        self._own = threading.local()

    def __bool__(self):
        return getattr(self._own, "process", None) is not None

    def __getitem__(self, _):
        return self._own.process

    def set(self, process):
        self._own.process = process


@contextmanager
def torch_workers(count, servers=0):
    """A function that calls another one on all workers of a cluster, with the rank, and gives the results by rank."""
    before, own = _process._current, _OfThread()
    _process._current = own
    try:
        with workers_of_one_process(count, servers=servers) as workers:
            processes = in_threads(*[lambda kv=kv: _process.Process(kv, None) for kv in workers])

            def on_all(function):
                def call(process):
                    own.set(process)
                    try:
                        result = function(process.worker.rank)
                        process.finish()
                    except BaseException as error:
                        traceback.print_exc()
                        process.worker.__exit__(type(error), error, None)  # the others must not wait for it
                        raise
                    return result

                return in_threads(*[lambda p=p: call(p) for p in processes])

            yield on_all
    finally:
        _process._current = before


class Net(nn.Module):
    """A module of several kinds: weights that are used twice, a frozen one, one that is read without its module's call,
    one in a list, batch normalisation, and a branch that only some iterations take."""

    def __init__(self, seed=0):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.twice = nn.Linear(6, 6)
        self.read = nn.Linear(6, 6, bias=False)
        self.listed = nn.ParameterList([nn.Parameter(torch.zeros(6))])
        self.branch = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        source = torch.Generator().manual_seed(seed)  # not the global one, which all threads share
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=source) / 2)
        self.last.bias.requires_grad = False

    def forward(self, x, branch=False):
        x = torch.tanh(self.norm(self.first(x)))
        x = self.twice(torch.tanh(self.twice(x))) + self.listed[0]
        x = nn.functional.linear(x, self.read.weight)
        if branch:
            x = x + self.branch(x)
        return self.last(torch.tanh(x))


def batch(rank, number):
    """The batch of a worker's iteration, another one on every worker."""
    source = torch.Generator().manual_seed(1000 * rank + number)
    return torch.randn(8, 4, generator=source) + rank, torch.randint(3, (8,), generator=source)


def loss_of(model, rank, number, **options):
    x, y = batch(rank, number)
    return nn.functional.cross_entropy(model(x, **options), y)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(got, wanted):
    """Whether two models' weights have the same bits."""
    return got.keys() == wanted.keys() and all(torch.equal(got[name], wanted[name]) for name in wanted)


def by_hand(workers, make, steps, after=lambda optimizer: None, **options):
    """The weights after some steps, by plain PyTorch: one model for each worker's batch, and the mean of the gradients.

    make(model): the optimizer. after(optimizer): called after each step. options: functions of the rank and the
    iteration, for the model's forward.
    """
    models = [Net() for _ in range(workers)]
    optimizer = make(models[0])
    for number in range(steps):
        for rank, model in enumerate(models):
            copy_parameters(models[0], model)
            model.zero_grad()
            loss_of(model, rank, number, **{k: v(rank, number) for k, v in options.items()}).backward()
        mean_into_first(models)
        optimizer.step()
        after(optimizer)
    return weights(models[0])


def copy_parameters(source, target):
    for mine, p in zip(source.parameters(), target.parameters()):
        p.data.copy_(mine.data)


def mean_into_first(models):
    """Gives the first model the mean of all models' gradients."""
    for parameters in zip(*[m.parameters() for m in models]):
        gradients = [p.grad for p in parameters if p.grad is not None]
        parameters[0].grad = sum(gradients) / len(models) if gradients else None
