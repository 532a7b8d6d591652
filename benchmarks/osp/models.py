"""The models."""

from __future__ import annotations

from typing import Callable

import torch
from torch import nn
from torch.nn.functional import relu

from .config import SetupError


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


def alexnet() -> nn.Module:
    """AlexNet for pictures of 32 x 32, (n, 3, 32, 32).

    Its weights are drawn as in He et al., ICCV 2015, for layers with ReLU. PyTorch's defaults are smaller by the square
    root of 6: without batch normalisation the outputs then shrink from layer to layer, and so do the gradients.
    """

    def convolution(channels: int, out: int, size: int, stride: int, padding: int, pool: bool) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Conv2d(channels, out, size, stride, padding), nn.Dropout(0.3), nn.ReLU()]
        return [*layers, nn.MaxPool2d(2)] if pool else layers

    model = nn.Sequential(
        *convolution(3, 64, 11, 4, 5, pool=True),
        *convolution(64, 192, 5, 1, 2, pool=True),
        *convolution(192, 384, 3, 1, 1, pool=False),
        *convolution(384, 256, 3, 1, 1, pool=False),
        *convolution(256, 256, 3, 1, 1, pool=True),
        nn.Flatten(),
        nn.Linear(256, 10),
    )
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            assert layer.bias is not None
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut (He et al., CVPR 2016, figure 2)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return relu(self.body(x) + self.shortcut(x))


def stages(channels: int, *outs: int) -> list[nn.Module]:
    """Stages of two blocks; all but the first halve the picture."""
    layers: list[nn.Module] = []
    for number, out in enumerate(outs):
        layers += [Block(channels, out, stride=1 if number == 0 else 2), Block(out, out, stride=1)]
        channels = out
    return layers


def resnet() -> nn.Module:
    """The small ResNet of three stages for pictures of 32 x 32, (n, 3, 32, 32)."""
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *stages(16, 16, 32, 64), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))


def resnet18() -> nn.Module:
    """ResNet-18 as in He et al., CVPR 2016, table 1, with 10 classes; (n, 3, height, width)."""
    stem = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*stem, *stages(64, 64, 128, 256, 512), *head)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "CNN": cnn,
    "AlexNet": alexnet,
    "ResNet": resnet,
    "ResNet18": resnet18,
    "DigitsCNN": digits_cnn,
}


def build(model_type: str, example: torch.Tensor, seed: int) -> nn.Module:
    """A model with weights drawn from the seed. SetupError if it is unknown, or cannot take the example's shape."""
    if model_type not in MODELS:
        raise SetupError(f"model_type is {model_type!r}, but there are: {', '.join(MODELS)}")
    torch.manual_seed(seed)
    model = MODELS[model_type]()
    try:
        with torch.no_grad():
            model.eval()(example)
    except RuntimeError as error:
        shape = " x ".join(map(str, example.shape[1:]))
        raise SetupError(f"model {model_type} takes no inputs of {shape}, as the data has: {error}") from error
    return model
