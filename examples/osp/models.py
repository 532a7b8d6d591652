"""The models, and a model seen as one vector."""

from __future__ import annotations

from typing import Callable

import torch
from config import SetupError
from torch import nn


def cnn() -> nn.Module:
    """For MNIST, (n, 1, 28, 28)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def digits_cnn() -> nn.Module:
    """For the digits, (n, 1, 8, 8); small, and with buffers (batch normalisation)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"CNN": cnn, "DigitsCNN": digits_cnn}


class FlatModel:
    """A network whose weights and buffers are views of one vector, the weights first.

    What is written to `vector` is at once in the network, and the other way round. Buffers are the running
    statistics of batch normalisation: without them a PS would evaluate with the initial ones.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.params = list(net.parameters())
        tensors = [*self.params, *(b for b in net.buffers() if b.is_floating_point())]
        self.weights = sum(p.numel() for p in self.params)
        self.vector = torch.cat([t.detach().flatten() for t in tensors])
        for t, part in zip(tensors, self.vector.split([t.numel() for t in tensors])):
            t.data = part.view_as(t)

    @property
    def buffers(self) -> torch.Tensor:
        return self.vector[self.weights :]

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        """A new vector of `weights` numbers: no .grad that a later step would overwrite."""
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.params)])


def build(model_type: str) -> FlatModel:
    if model_type not in MODELS:
        raise SetupError(f"model_type is {model_type!r}, but there are: {', '.join(MODELS)}")
    return FlatModel(MODELS[model_type]())
