"""The role of ranks 1, 2, ...: trains on its own shard of the data, and reports each round."""

from __future__ import annotations

import zlib

import torch
from torch.nn.functional import cross_entropy

from fptps.torch.local import Local, Round

from . import algorithms, datasets, models
from .config import Config
from .link import TRAINING, Link, Report
from .schedules import get_ps_lr, get_worker_gamma


class Worker:
    """Trains in one cluster after another, if workers are lost."""

    def __init__(self, rank: int, algorithm: str, config: Config, data: datasets.Dataset) -> None:
        self.rank = rank
        self.algorithm = algorithm
        self.config = config
        self.round = self.iterations = 0
        self.data = data
        self._model = models.build(config.model_type, data.inputs(data.test_x[:1]), config.seed)
        self._model.train()
        torch.manual_seed(config.seed + rank)  # dropout: other units on every worker
        self._samples = 0
        self._loss = 0.0

    def train(self, link: Link) -> None:
        """From the PS's global model, which has self.round rounds and self.iterations iterations, until the end."""
        config, data, round, iterations = self.config, self.data, self.round, self.iterations
        optimizer = torch.optim.SGD(self._model.parameters(), lr=get_ps_lr(config, iterations))
        local = algorithms.make(self.algorithm, link.kv, self._model, optimizer, config, TRAINING)
        local.round, local.iterations = round, iterations
        if self.algorithm in algorithms.COMPENSATED:
            local.compensation = get_worker_gamma(config, iterations) / get_ps_lr(config, iterations)
        self._report_to(link, local, optimizer)
        mine = datasets.shard(len(data.train_y), link.kv.rank - 1, link.kv.num_workers - 1, config.seed)
        batches = datasets.batches(mine, config.batch_size, config.seed + self.rank + round)
        while not local.finished:
            batch = next(batches)
            optimizer.zero_grad()
            loss = cross_entropy(self._model(data.inputs(data.train_x[batch])), data.train_y[batch])
            loss.backward()
            # By samples: a short last batch weighs less.
            self._samples += len(batch)
            self._loss += loss.item() * len(batch)
            local.step()

    def _report_to(self, link: Link, local: Local, optimizer: torch.optim.SGD) -> None:
        sent_loss = 0.0
        self._samples, self._loss = 0, 0.0

        def sent(steps: int) -> None:
            nonlocal sent_loss
            sent_loss = self._loss / self._samples
            self._samples, self._loss = 0, 0.0

        def ended(round: Round) -> None:
            crc = zlib.crc32(local.w.numpy().data)
            link.report(Report(round.steps, sent_loss, round.in_flight_s, round.waited_s, round.bytes, crc))
            if not local.finished:
                algorithms.set_rates(self.algorithm, local, optimizer, self.config)

        local.on_send, local.on_round = sent, ended

    def end(self) -> None:
        """All iterations are done: the files are the PS's."""

    def end_early(self, why: str) -> None:
        """A node was lost: the files are the PS's."""

    def close(self) -> None:
        """A worker holds nothing open."""
