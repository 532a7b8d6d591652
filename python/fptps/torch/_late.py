"""Updates of single parameters, after step(): by the optimizer itself, with the settings that it had then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import nn

PER_PARAMETER: Final = (
    "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD", "Adafactor",
    "SparseAdam", "Muon",
)  # fmt: skip
"""Those of torch.optim whose update of a parameter depends on nothing but its gradient, its state and its group."""
OPT_IN: Final = "fptps_per_parameter"
"""The attribute by which any other optimizer says the same."""

Update = tuple[dict[str, Any], list[tuple[nn.Parameter, torch.Tensor]]]
"""A group's settings, and parameters with their gradients."""


def late_reason(optimizer: torch.optim.Optimizer) -> str:
    """Why the parameters of an optimizer cannot be updated one by one; "" if they can."""
    kind = type(optimizer)
    known = [getattr(torch.optim, name).step for name in PER_PARAMETER if hasattr(torch.optim, name)]
    if kind.step in known or getattr(kind, OPT_IN, False):
        return ""
    return (
        f"an update of a parameter by itself is not known to be the same. If it is, set {OPT_IN} = True on "
        f"{kind.__name__}"
    )


def update(optimizer: torch.optim.Optimizer, updates: Iterable[Update]) -> None:
    """Takes the optimizer's step for some parameters alone, whatever mode the caller's computation is in."""
    updates = list(updates)
    groups, kept = optimizer.param_groups, [(p, p.grad) for _, pairs in updates for p, _ in pairs]
    step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)  # without PyTorch's hooks and profile
    try:
        optimizer.param_groups = [{**settings, "params": [p for p, _ in pairs]} for settings, pairs in updates]
        for _, pairs in updates:
            for p, gradient in pairs:
                p.grad = gradient
        with torch.inference_mode(False), torch.no_grad(), _without_autocast():
            step(optimizer)
    finally:
        optimizer.param_groups = groups
        for p, before in kept:
            p.grad = before


def _without_autocast() -> Any:
    return torch.autocast("cuda" if torch.is_autocast_enabled() else "cpu", enabled=False)
