"""The algorithms: their settings, their equations on vectors, and the order of a worker's actions. No IO."""

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
    """The settings that all workers of a training share. ValueError if they contradict each other."""

    steps: int
    """Local steps of a round: exactly so many, or with overlap at most so many."""
    total_steps: int
    """The training ends with the round in which all workers together reach this number."""
    overlap: bool = False
    """The workers continue to step while their updates are in flight."""
    outer: Nesterov | None = None
    quantizer: Quantizer | None = None
    """Encodes the updates and their sum. None: they are sent as floats."""
    error_feedback: bool = False
    """A worker adds the quantisation error of an update to its next update."""
    fragments: int = 1
    """Number of fragments of the model. Each round exchanges one of them, in cyclic order."""
    delay: int = 0
    """Without overlap: the number of steps between sending an update and applying its sum."""
    mixing: float = 0.0
    """Without overlap: the weight, 0 to below 1, of a worker's own parameters when it mixes them with w."""

    def __post_init__(self) -> None:
        for name in ("steps", "total_steps", "fragments"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but at least 1 is needed")
        if not 0 <= self.delay <= self.steps:
            raise ValueError(f"delay is {self.delay}, but 0 to {self.steps}, the steps of a round, are possible")
        if not 0 <= self.mixing < 1:
            raise ValueError(f"mixing is {self.mixing}, but a number from 0 to below 1 is needed")
        if self.error_feedback and self.quantizer is None:
            raise ValueError("error_feedback is for quantised updates, but there is no quantizer")


class Act(enum.Enum):
    """A worker's next action."""

    STEP = "step"
    """Take the next local step."""
    SEND = "send"
    """Send the update; with overlap, continue from x <- w - c * d."""
    APPLY = "apply"
    """Wait for the sum of the updates and apply it to w; without overlap, continue from there."""


def decide(algorithm: Algorithm, steps: int, in_flight: bool, arrived: bool) -> Act:
    """The next action of a worker.

    steps: taken since it last sent, or since the training began; in_flight: an update of its own is in flight; arrived:
    the sum of that round has arrived. A worker sends only after it has applied the sum of its last update, so all
    workers take part in the same rounds. Each update has at least one step. With overlap a sum is applied right before
    the next update is sent, so the equations have no other case.
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
    """The global model w, or a fragment of it. Equal, bit for bit, wherever the same means are applied.

    w: (size,); it is modified in place.
    """

    def __init__(self, w: torch.Tensor, outer: Nesterov | None) -> None:
        self.w = w
        self.outer = outer
        self.momentum = torch.zeros_like(w) if outer else None

    def apply(self, mean: torch.Tensor) -> None:
        """Ends a round: w <- w - mean; with Nesterov v <- mu * v + mean, w <- w - rate * (mean + mu * v).

        No operation both multiplies and adds: some processors would round it once, others twice.
        """
        if self.outer is None or self.momentum is None:
            self.w.sub_(mean)
            return
        self.momentum.mul_(self.outer.momentum).add_(mean)
        self.w.sub_(self.momentum.mul(self.outer.momentum).add_(mean).mul_(self.outer.rate))

    def restart(self, update: torch.Tensor, compensation: float) -> torch.Tensor:
        """The parameters from which a worker continues while its update is in flight: w - compensation * update."""
        return self.w - compensation * update if compensation else self.w.clone()

    def state_dict(self) -> dict[str, Any]:
        """Copies of w and the momentum."""
        return {"w": self.w.clone(), "momentum": None if self.momentum is None else self.momentum.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state of state_dict()."""
        self.w.copy_(state["w"])
        if self.momentum is not None:
            self.momentum.copy_(state["momentum"])


def cut(sizes: Sequence[int], fragments: int) -> list[slice]:
    """The parameters of each fragment: neighbours, with about the same number of elements in every fragment.

    sizes: of the parameters, in elements. ValueError if there are fewer parameters than fragments.
    """
    if fragments > len(sizes):
        raise ValueError(f"fragments={fragments}, but the model has only {len(sizes)} parameters to train")
    before = [0, *itertools.accumulate(sizes)]
    starts = [0]
    for number in range(1, fragments):
        even = before[-1] * number / fragments
        possible = range(starts[-1] + 1, len(sizes) - fragments + number + 1)  # no fragment is empty
        starts.append(min(possible, key=lambda start: abs(before[start] - even)))
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(sizes)])]
