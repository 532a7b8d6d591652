"""The CPU time of DistributedOptimizer's steps: a model of many small parameters beside one of few with as many bytes.

    python -m benchmarks.training.cost --scale 0.1

trains the 161 parameters of ResNet-50, and 10 parameters of the same total, each on two workers without servers, in
alternating runs. A layer computes nothing: its gradients are filled with a constant. So the time is that of PyTorch's
calls for each parameter, of filling and adding as many bytes, and of fptps. "plain" is the same without fptps. The
last line is one JSON object: milliseconds of CPU time (all threads, user and system) of a step of one worker, as
medians, and the ratios of the two models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fptps
from benchmarks.summary import run_order
from fptps._bench.profile import load

PROFILE = Path(__file__).parents[1] / "profiles" / "resnet50.json"
WARM_UP = 10
"""Steps before the measured ones."""


class _Use(torch.autograd.Function):
    """Uses a layer's parameters: their gradients are constants."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.parameters = parameters
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        return gradient, *(torch.full_like(p, 1e-3) for p in ctx.parameters)


class Layer(nn.Module):
    """A layer with parameters of these numbers of elements."""

    def __init__(self, elements: tuple[int, ...]) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.zeros(count)) for count in elements])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Use.apply(x, *self.all)
        return result


def layers(tensors: str, scale: float) -> Sequence[tuple[int, ...]]:
    """The numbers of elements, by layer: "many" as ResNet-50 has them, "few" as 10 layers of one each."""
    many = [layer.elements for layer in load(PROFILE, scale).layers if layer.elements]
    if tensors == "many":
        return many
    total = sum(map(sum, many))
    return [*[(total // 10,)] * 9, (total - total // 10 * 9,)]


def train(tensors: str, scale: float, steps: int, plain: bool) -> float:
    """In a worker: seconds of CPU time of a step."""
    import fptps.torch as ft

    torch.set_num_threads(1)
    model = nn.Sequential(*map(Layer, layers(tensors, scale)))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ft.init()
    if not plain:
        model, optimizer = ft.prepare(model, optimizer)
    x = torch.zeros(1, requires_grad=True)
    start = time.process_time()
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            ft.barrier()
            start = time.process_time()
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    if not plain:
        ft.check(model)
    spent = time.process_time() - start
    ft.shutdown()
    return spent / steps


def measure(system: str, scale: float, steps: int) -> float:
    """Milliseconds of a step of one worker: system is "many" or "few", with " plain" after it without fptps."""
    tensors, _, plain = system.partition(" ")
    with fptps.LocalCluster(workers=2, servers=0) as cluster:
        seconds: list[float] = cluster.run(train, tensors, scale, steps, bool(plain))
    return 1e3 * statistics.mean(seconds)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=0.1, help="factor of the sizes of the parameters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="measured steps of a run")
    options = parser.parse_args()
    samples: dict[str, list[float]] = {"many": [], "few": [], "many plain": [], "few plain": []}
    for run in run_order(list(samples), options.rounds):
        samples[run.system].append(measure(run.system, options.scale, options.steps))
        print(f"{run.system}: {samples[run.system][-1]:.2f} ms", flush=True)
    medians = {system: statistics.median(values) for system, values in samples.items()}
    added = {tensors: medians[tensors] - medians[f"{tensors} plain"] for tensors in ("many", "few")}
    report = {
        **{f"{system} ms": round(value, 3) for system, value in medians.items()},
        "ratio": round(medians["many"] / medians["few"], 3),
        "ratio of what fptps adds": round(added["many"] / added["few"], 3),
        "bytes": 4 * sum(map(sum, layers("many", options.scale))),
        "scale": options.scale,
        "rounds": options.rounds,
        "steps": options.steps,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
