"""The worker's side of each algorithm; the PS's side is the same for all."""

from __future__ import annotations

from typing import Callable

from worker import Worker

from algorithms import localsgd

ALGORITHMS: dict[str, Callable[[Worker], None]] = {"localSGD": localsgd.train}
"""By the name on the command line: trains until the global model is finished."""
