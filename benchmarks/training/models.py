"""What is trained: a model that replays a profile, and a CNN that computes. Each verifies the weights that it got."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from fptps._bench.bound import iteration_s
from fptps._bench.profile import Layer, load

from ..osp.models import build
from .common import PROFILES, Device, WrongWeights
from .names import CNN

BATCH: Final = 8
"""Pictures of a worker in an iteration of the CNN."""
SIDE: Final = 28
"""Pixels of a side of the CNN's pictures."""


class Job(Protocol):
    """A model with its data, for one worker."""

    def build(self) -> nn.Module:
        """A new model, the same on all workers."""

    def loss(self, model: nn.Module) -> torch.Tensor:
        """A forward pass on this worker's next batch."""

    def bound_s(self, rate: float) -> float | None:
        """The least time of an iteration at a rate in bytes per second; None if it is not known."""

    def verify(self, net: nn.Module, steps: int) -> None:
        """Raises WrongWeights unless the weights can be those after so many steps of SGD with a learning rate of 1."""


class Step(torch.autograd.Function):
    """A layer's forward and backward step. The gradient of every element is the worker's number, counted from 1."""

    @staticmethod
    def forward(ctx: Any, layer: ReplayedLayer, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.layer, ctx.shapes = layer, [parameter.shape for parameter in parameters]
        layer.device.compute(layer.times.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        layer = ctx.layer
        layer.device.compute(layer.times.backward_s)
        return None, gradients[0], *(torch.full(shape, layer.gradient) for shape in ctx.shapes)


class ReplayedLayer(nn.Module):
    """A layer with the tensors and the times of a profile's."""

    def __init__(self, times: Layer, device: Device, gradient: float) -> None:
        super().__init__()
        self.times, self.device, self.gradient = times, device, gradient
        self.tensors = nn.ParameterList(torch.zeros(count) for count in times.elements)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        done: torch.Tensor = Step.apply(self, x, *self.tensors)
        return done


class Replay:
    """A profile's model."""

    def __init__(self, path: Path, scale: float, rank: int, workers: int) -> None:
        self._layers = load(path, scale).layers
        self._gradient, self._mean = rank + 1.0, (workers + 1) / 2
        self._x = torch.zeros(1, requires_grad=True)

    def build(self) -> nn.Module:
        """See Job."""
        device = Device()
        return nn.Sequential(*(ReplayedLayer(layer, device, self._gradient) for layer in self._layers))

    def loss(self, model: nn.Module) -> torch.Tensor:
        """See Job."""
        y: torch.Tensor = model(self._x)
        return y.sum()

    def bound_s(self, rate: float) -> float:
        """See Job."""
        return iteration_s(self._layers, rate)

    def verify(self, net: nn.Module, steps: int) -> None:
        """See Job. The weights are exact: halves of small integers."""
        for name, parameter in net.named_parameters():
            if not bool((parameter == -steps * self._mean).all()):
                raise WrongWeights(f"{name} is {parameter}, and not {-steps * self._mean} after {steps} steps")


class Pictures:
    """A CNN of 1.2 million weights for handwritten digits of 28 x 28 pixels: scikit-learn's, enlarged."""

    def __init__(self, rank: int, workers: int) -> None:
        from sklearn.datasets import load_digits  # a slow import, and nothing else needs it

        pixels, labels = load_digits(return_X_y=True)
        small = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self._x = interpolate(small, size=(SIDE, SIDE), mode="bilinear")[rank::workers]
        self._y = torch.as_tensor(labels)[rank::workers]
        self._batches = 0

    def build(self) -> nn.Module:
        """See Job."""
        return build("CNN", self._x[:1], seed=1).train()

    def loss(self, model: nn.Module) -> torch.Tensor:
        """See Job. The learning rate is in the loss."""
        begin = self._batches * BATCH % (len(self._x) - BATCH)
        end = begin + BATCH
        self._batches += 1
        return 0.01 * cross_entropy(model(self._x[begin:end]), self._y[begin:end])

    def bound_s(self, rate: float) -> None:
        """See Job."""
        return

    def verify(self, net: nn.Module, steps: int) -> None:
        """See Job."""
        if not all(bool(parameter.isfinite().all()) for parameter in net.parameters()):
            raise WrongWeights(f"not all weights are finite after {steps} steps")


def job(name: str, scale: float, rank: int, workers: int) -> Job:
    """The job of a name: CNN, or a profile."""
    return Pictures(rank, workers) if name == CNN else Replay(PROFILES / f"{name}.json", scale, rank, workers)


def same_weights(weights: Sequence[bytes]) -> None:
    """Raises WrongWeights unless all workers have the same."""
    different = [rank for rank, each in enumerate(weights) if each != weights[0]]
    if different:
        raise WrongWeights(f"workers {different} have other weights than worker 0")
