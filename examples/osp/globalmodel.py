"""The global model w. The PS and every worker hold a copy and apply the same sums to it, bit for bit."""

from __future__ import annotations

import torch
from config import Config
from schedules import get_ps_lr


class GlobalModel:
    """w after some rounds: a vector of weights, then buffers (see models.FlatModel)."""

    def __init__(self, vector: torch.Tensor, weights: int, workers: int, config: Config) -> None:
        self.vector = vector
        self.weights = weights
        self.workers = workers
        self.config = config
        self.iterations = 0  # done by all workers

    @property
    def finished(self) -> bool:
        return self.iterations >= self.config.all_iterations

    @property
    def rate(self) -> float:
        """eta: fixed at a round's start, so that steps on the workers and the sum on w use the same."""
        return get_ps_lr(self.config, self.iterations)

    def apply(self, total: torch.Tensor, iterations: int) -> None:
        """Ends a round: w <- w - (eta/P) * sum of G_i; buffers become the workers' mean."""
        self.vector[: self.weights].sub_(total[: self.weights], alpha=self.rate / self.workers)
        torch.div(total[self.weights :], self.workers, out=self.vector[self.weights :])
        self.iterations += iterations
