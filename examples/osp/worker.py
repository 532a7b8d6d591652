"""The role of ranks 1, 2, ...: a local model x, its steps, and what it has to tell the PS."""

from __future__ import annotations

import datasets
import models
import torch
from config import Config
from globalmodel import GlobalModel
from link import Link, Report
from torch.nn.functional import cross_entropy


class Worker:
    """Local training. An algorithm decides when to step, when to send, and what x becomes."""

    def __init__(self, link: Link, config: Config, data: datasets.Dataset) -> None:
        torch.manual_seed(config.seed + link.rank)  # dropout: every worker drops others
        self.link = link
        self.config = config
        self.data = data
        self.model = models.build(config.model_type)
        link.model_from_ps(self.model.vector)
        self.world = GlobalModel(self.model.vector.clone(), self.model.weights, link.workers, config)
        mine = datasets.shard(len(data.train_y), link.rank - 1, link.workers, config.seed)
        self._batches = datasets.batches(mine, config.batch_size, config.seed + link.rank)
        self._gradients = torch.zeros(self.model.weights)
        self._iterations = self._samples = 0
        self._loss = 0.0
        self.model.net.train()

    def step(self, rate: float) -> None:
        """x <- x - rate * g, on the next batch; g is added to G."""
        batch = next(self._batches)
        scores = self.model.net(self.data.inputs(self.data.train_x[batch]))
        loss = cross_entropy(scores, self.data.train_y[batch])
        gradient = self.model.gradient(loss)
        self.model.vector[: self.model.weights].sub_(gradient, alpha=rate)
        self._gradients.add_(gradient)
        self._iterations += 1
        # By samples: a short last batch weighs less.
        self._samples += len(batch)
        self._loss += loss.item() * len(batch)

    def take(self) -> tuple[torch.Tensor, Report]:
        """The message (G, buffers) and the report of the steps since the last take; starts both anew."""
        message = torch.cat([self._gradients, self.model.buffers])
        report = Report(self._iterations, self._loss / self._samples)
        self._gradients.zero_()
        self._iterations = self._samples = 0
        self._loss = 0.0
        return message, report
