"""The data and the model of train.py: scikit-learn's handwritten digits and a small CNN."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn


class Digits(NamedTuple):
    """1797 grey pictures: x (n, 1, 8, 8) float32 in 0..1; y the digits, (n,) int64."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def load(test_size: int = 360) -> Digits:
    """The data set ships with scikit-learn; the split is the same in every process."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.as_tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    test, train = order[:test_size], order[test_size:]
    return Digits(x[train], y[train], x[test], y[test])


def cnn() -> nn.Sequential:
    """149 k weights. Its layers are chosen so that the result does not depend on the number of workers.

    Dropout and batch normalisation would see a worker's part of a batch, not the batch. The last bit
    of a sum depends on the order of its terms: functions with kinks (ReLU, max pooling) would let
    such differences grow to a few per cent of the weights, smooth functions keep them small.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    )
