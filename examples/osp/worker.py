"""The role of ranks 1, 2, ...: trains on its own share of the data, and reports each round."""

from __future__ import annotations

import zlib

import algorithms
import datasets
import models
import torch
from config import Config
from link import TRAINING, Link, Report
from schedules import get_ps_lr, get_worker_gamma
from torch.nn.functional import cross_entropy

from fptps.torch.local import Local, Round


class Worker:
    """Trains in one cluster after another, should one be lost."""

    def __init__(self, rank: int, algorithm: str, config: Config, data: datasets.Dataset) -> None:
        self.rank = rank
        self.algorithm = algorithm
        self.config = config
        self.data = data
        self.model = models.build(config.model_type, data.inputs(data.test_x[:1]), config.seed)
        self.model.train()
        torch.manual_seed(config.seed + rank)  # dropout: every worker drops others
        self.round = self.iterations = 0
        self._samples = 0
        self._loss = 0.0

    def train(self, link: Link) -> None:
        """From the PS's global model, which has `round` rounds and so many iterations already, to the end."""
        config, data, round, iterations = self.config, self.data, self.round, self.iterations
        optimizer = torch.optim.SGD(self.model.parameters(), lr=get_ps_lr(config, iterations))
        local = algorithms.make(self.algorithm, link.kv, self.model, optimizer, config, TRAINING)
        local.round, local.iterations = round, iterations
        if self.algorithm in algorithms.COMPENSATED:
            local.compensation = get_worker_gamma(config, iterations) / get_ps_lr(config, iterations)
        self._report_to(link, local, optimizer)
        mine = datasets.shard(len(data.train_y), link.kv.rank - 1, link.kv.num_workers - 1, config.seed)
        batches = datasets.batches(mine, config.batch_size, config.seed + self.rank + round)
        while not local.finished:
            batch = next(batches)
            optimizer.zero_grad()
            loss = cross_entropy(self.model(data.inputs(data.train_x[batch])), data.train_y[batch])
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
            crc = zlib.crc32(local.w.numpy())
            link.report(Report(round.steps, sent_loss, round.under_way_s, round.waited_s, round.bytes, crc))
            if not local.finished:
                algorithms.set_rates(self.algorithm, local, optimizer, self.config)

        local.on_send, local.on_round = sent, ended

    def end(self) -> None:
        """All iterations are done: nothing is left to do."""

    def end_early(self, why: str) -> None:
        """A node was lost: nothing of this process's is to be kept."""

    def close(self) -> None:
        """Nothing is open."""
