"""Rates as functions of the iterations done and all iterations (of all workers together).

The PS and the workers count the same iterations and so compute the same rate, without asking each other.
"""

from __future__ import annotations

from typing import Callable

from config import Config, SetupError

SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda done, everything: 1.0,
    "linear": lambda done, everything: 1.0 - done / everything,
}
"""The share of the initial rate that holds when `done` of `everything` iterations are done."""


def get_ps_lr(config: Config, done: int) -> float:
    """eta of the round that starts after `done` iterations."""
    if config.lr_schedule not in SCHEDULES:
        raise SetupError(f"lr_schedule is {config.lr_schedule!r}, but there are: {', '.join(SCHEDULES)}")
    return config.initial_lr * SCHEDULES[config.lr_schedule](done, config.all_iterations)
