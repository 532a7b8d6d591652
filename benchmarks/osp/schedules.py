"""Rates as functions of the iterations done and all iterations (of all workers together).

Every process counts the same iterations, so all compute the same rate without communication.
"""

from __future__ import annotations

import math
from typing import Callable

from .config import Config

SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda done, total: 1.0,
    "linear": lambda done, total: 1.0 - done / total,
    "cosine": lambda done, total: (1.0 + math.cos(math.pi * done / total)) / 2,
}
"""The factor of the initial rate after `done` of `total` iterations."""


def get_ps_lr(config: Config, done: int) -> float:
    """eta of the steps that start from the global model of `done` iterations."""
    return config.initial_lr * SCHEDULES[config.lr_schedule](done, config.all_iterations)


def get_worker_gamma(config: Config, done: int) -> float:
    """gamma when the global model has `done` iterations."""
    return config.gamma * SCHEDULES[config.gamma_schedule](done, config.all_iterations)
