"""The algorithms: their settings, their equations on vectors, and when a worker does what. All of it is pure."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...codec import Quantizer


@dataclass(frozen=True)
class Nesterov:
    """DiLoCo's outer optimizer (Douillard et al., 2023, section 2): SGD with Nesterov momentum on the global model."""

    rate: float = 0.7
    momentum: float = 0.9


@dataclass(frozen=True)
class Algorithm:
    """What the workers of one training have to have in common. ValueError if it makes no sense."""

    steps: int
    """Local steps of a round: exactly so many, or with overlap at most."""
    total_steps: int
    """The training ends with the round in which all workers together have done so many."""
    overlap: bool = False
    """The workers step on while their updates are under way, until the sum is there."""
    outer: Nesterov | None = None
    quantizer: Quantizer | None = None
    """How updates travel, in both directions. None: as they are."""
    error_feedback: bool = False
    """What the quantisation of an update leaves out is added to the worker's next one."""
    fragments: int = 1
    """The model is cut into so many, and a round exchanges one of them, in turn."""
    delay: int = 0
    """Without overlap: so many steps after its sending an update's sum is waited for and applied."""
    mixing: float = 0.0
    """Without overlap: the share of its own parameters that a worker keeps when it takes over the global ones."""

    def __post_init__(self) -> None:
        for name in ("steps", "total_steps", "fragments"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but at least 1 is needed")
        if not 0 <= self.delay <= self.steps:
            raise ValueError(f"delay is {self.delay}, but 0 to {self.steps}, the steps of a round, are possible")
        if not 0 <= self.mixing < 1:
            raise ValueError(f"mixing is {self.mixing}, but a share from 0 to below 1 is needed")
        if self.error_feedback and self.quantizer is None:
            raise ValueError("error_feedback is for quantised updates, but there is no quantizer")


class Act(enum.Enum):
    """What a worker does next."""

    STEP = "step"
    """Computes the next gradient."""
    SEND = "send"
    """Sends its update, and with overlap goes on from x <- w - c * d."""
    APPLY = "apply"
    """Waits for the sum of the updates and applies it to w; without overlap it goes on from there."""


def decide(algorithm: Algorithm, steps: int, in_flight: bool, arrived: bool) -> Act:
    """The next act of a worker that has done so many steps since it sent, or since the training began.

    in_flight: an update of its own is under way; arrived: its sum is here. A worker sends only when the sum of its last
    update is applied, so that all workers take part in the same rounds. At least one step lies in each update. With
    overlap a sum is applied right before the next update is sent, so that the equations have no other case.
    """
    if not algorithm.overlap:
        if in_flight:
            return Act.APPLY if steps >= algorithm.delay else Act.STEP
        return Act.SEND if steps >= algorithm.steps else Act.STEP
    if steps < 1:
        return Act.STEP
    if in_flight:
        return Act.APPLY if arrived or steps >= algorithm.steps else Act.STEP
    return Act.SEND


class Center:
    """The global model w, or a fragment, and how it moves. Equal, bit for bit, wherever the same means are applied.

    w: is written to.
    """

    def __init__(self, w: torch.Tensor, outer: Nesterov | None) -> None:
        self.w = w
        self.outer = outer
        self.momentum = torch.zeros_like(w) if outer else None

    def apply(self, mean: torch.Tensor) -> None:
        """Ends a round: w <- w - mean; with Nesterov v <- mu * v + mean, w <- w - rate * (mean + mu * v).

        No product and sum are in one operation, which some processors would round once and others twice.
        """
        if self.outer is None or self.momentum is None:
            self.w.sub_(mean)
            return
        self.momentum.mul_(self.outer.momentum).add_(mean)
        self.w.sub_(self.momentum.mul(self.outer.momentum).add_(mean).mul_(self.outer.rate))

    def restart(self, update: torch.Tensor, compensation: float) -> torch.Tensor:
        """Where a worker goes on whose update is on its way: w - compensation * update."""
        return self.w - compensation * update if compensation else self.w.clone()

    def state_dict(self) -> dict[str, Any]:
        """Copies of w and the momentum."""
        return {"w": self.w.clone(), "momentum": None if self.momentum is None else self.momentum.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to where state_dict() was called."""
        self.w.copy_(state["w"])
        if self.momentum is not None:
            self.momentum.copy_(state["momentum"])


def cut(sizes: Sequence[int], fragments: int) -> list[slice]:
    """Which of a model's parameters are in each fragment: neighbours, and of about the same size in all.

    sizes: of the parameters. ValueError where there are fewer than fragments.
    """
    if fragments > len(sizes):
        raise ValueError(f"fragments={fragments}, but the model has only {len(sizes)} parameters to train")
    before = [0, *itertools.accumulate(sizes)]
    starts = [0]
    for number in range(1, fragments):
        even = before[-1] * number / fragments
        possible = range(starts[-1] + 1, len(sizes) - fragments + number + 1)  # none of them is left empty
        starts.append(min(possible, key=lambda start: abs(before[start] - even)))
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(sizes)])]
