"""Optimisers for KVWorker.set_optimizer(), with torch.optim's names, hyper-parameters and defaults.

An Optimizer holds hyper-parameters only; the aggregators apply it. For the same gradients the results equal those of
torch.optim up to rounding, in float32 (float64 for float64 tensors). gocore/store/rule.go has the equations and cites
the papers.
"""

from __future__ import annotations

import dataclasses
import json
import math

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer"]


class Optimizer:
    """Base class of SGD, Adam, AdamW and Adagrad, the argument of set_optimizer().

    - lr: the learning rate, 0 or more; KVWorker.set_learning_rate() changes it later.
    - weight_decay: the factor by which the weights are added to the gradient (AdamW: by which they shrink).

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
    """torch.optim.Adam. betas: decay of the running means of the gradient and of its square, from 0 to below 1."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class AdamW(Optimizer):
    """torch.optim.AdamW: Adam with weight decay decoupled from the gradient."""

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
    """Encodes the optimiser for the core. TypeError unless it is one of the four classes."""
    if type(optimizer) not in (SGD, Adam, AdamW, Adagrad):
        raise TypeError(f"{optimizer!r}: an optimiser of fptps.optim (SGD, Adam, AdamW, Adagrad) is expected")
    return json.dumps({"kind": type(optimizer).__name__, **vars(optimizer)}, default=float)
