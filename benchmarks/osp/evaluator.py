"""Evaluates the global model of each round, in a process of its own with the lowest CPU priority.

So neither the rounds nor the workers of the same machine wait for an evaluation. Those that are still pending when the
training ends are done then.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from . import datasets, models
from .config import Config

MOST_PENDING_BYTES = 2 << 30
"""So many bytes of models may wait for their evaluation; beyond that the PS waits."""
PR_SET_PDEATHSIG = 1

Scores = tuple[float, float]
"""Accuracy, and mean loss."""


class Evaluator:
    """Scores models in the order of submission; each comes with an object that is returned with its scores."""

    def __init__(self, config: Config, data_dir: Path | None) -> None:
        spawn = multiprocessing.get_context("spawn")  # a forked child could not use fptps
        self._pool = ProcessPoolExecutor(1, spawn, _start, (config, data_dir))
        self._pending: deque[tuple[Any, Future[Scores]]] = deque()

    def submit(self, model: nn.Module, companion: Any) -> None:
        """Has a copy of the model scored on config.test_samples samples, later."""
        self._submit(model, companion, everything=False)

    def score(self, model: nn.Module) -> Scores:
        """The scores on the whole test set. Waits."""
        self._submit(model, None, everything=True)
        return self._pending.pop()[1].result()

    def scored(self, wait: bool) -> Iterator[tuple[Any, Scores]]:
        """The companions and scores that are ready. wait: of all that were submitted."""
        while self._pending:
            companion, future = self._pending[0]
            if not (wait or future.done() or len(self._pending) * self._model_bytes > MOST_PENDING_BYTES):
                return
            scores = future.result()
            self._pending.popleft()
            yield companion, scores

    def give_up(self) -> Iterator[Any]:
        """The companions of the models that are not scored yet, and never will be."""
        while self._pending:
            yield self._pending.popleft()[0]

    def close(self) -> None:
        """Ends the process, after the model that it scores now; those that are pending are not scored."""
        # With wait=False the pool's thread closes its pipe while Python's exit may write into it: OSError, at times.
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, model: nn.Module, companion: Any, everything: bool) -> None:
        state = {name: t.numpy().copy() for name, t in model.state_dict().items()}
        self._model_bytes = sum(array.nbytes for array in state.values())
        self._pending.append((companion, self._pool.submit(_score, state, everything)))


class Scorer:
    """The process's side: the data, and a model that is loaded with one state after another."""

    def __init__(self, config: Config, data_dir: Path | None) -> None:
        self._data = datasets.load(config.dataset_type, data_dir)
        self._model = models.build(config.model_type, self._data.inputs(self._data.test_x[:1]), config.seed)
        self._all = torch.arange(len(self._data.test_y))
        order = torch.randperm(len(self._all), generator=torch.Generator().manual_seed(config.seed))
        self._sample = order[: config.test_samples or len(order)]

    def score(self, state: dict[str, Any], everything: bool) -> Scores:
        self._model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        return evaluate(self._model, self._data, self._all if everything else self._sample)


_scorer: Scorer


def _start(config: Config, data_dir: Path | None) -> None:
    global _scorer
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # never outlives the PS
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the PS
    os.nice(19)
    torch.set_num_threads(1)
    _scorer = Scorer(config, data_dir)


def _score(state: dict[str, Any], everything: bool) -> Scores:
    return _scorer.score(state, everything)


@torch.no_grad()
def evaluate(model: nn.Module, data: datasets.Dataset, samples: torch.Tensor, size: int = 50) -> Scores:
    """Accuracy and mean loss on some samples of the test set, (n,) int64."""
    model.eval()
    right, loss = 0, 0.0
    for batch in samples.split(size):
        scores, y = model(data.inputs(data.test_x[batch])), data.test_y[batch]
        right += int((scores.argmax(1) == y).sum())
        loss += cross_entropy(scores, y, reduction="sum").item()
    return right / len(samples), loss / len(samples)
