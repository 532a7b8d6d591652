"""Optimisers for KVWorker.set_optimizer(): torch.optim's names, hyper-parameters and defaults, as plain values.

They do nothing by themselves: the nodes that sum the gradients apply them. The results are those of torch.optim for the
same gradients, up to the rounding of float32 (of float64 for float64 tensors). The steps are PyTorch's; the papers are
named in gocore/store/rule.go.
"""

from __future__ import annotations

import dataclasses
import json
import math


class Optimizer:
    """What set_optimizer() takes: SGD, Adam, AdamW or Adagrad.

    lr: the learning rate, 0 or more; KVWorker.set_learning_rate() changes it later.
    weight_decay: is added to the gradient, times the weights (AdamW: is taken from the weights themselves).

    Raises ValueError for a number that is negative or not finite.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            for number in value if isinstance(value, tuple) else (value,):
                if not 0 <= number < math.inf:
                    raise ValueError(f"{type(self).__name__}: {name}={value!r}: finite and 0 or more is expected")


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: torch.optim.SGD without dampening. nesterov needs a momentum."""

    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
    """torch.optim.Adam. betas: how much of the running means of the gradient and of its square stays, below 1."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class AdamW(Optimizer):
    """torch.optim.AdamW: Adam with the weights' decay apart from the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """torch.optim.Adagrad. lr_decay: the n-th step's rate is lr / (1 + (n - 1) * lr_decay)."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10


def rule(optimizer: Optimizer) -> str:
    """The optimiser as the core reads it. TypeError for what is none of the four."""
    if type(optimizer) not in (SGD, Adam, AdamW, Adagrad):
        raise TypeError(f"{optimizer!r}: an optimiser of fptps.optim (SGD, Adam, AdamW, Adagrad) is expected")
    return json.dumps({"kind": type(optimizer).__name__, **vars(optimizer)}, default=float)
