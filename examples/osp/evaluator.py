"""Evaluates the global model of each round, in a process of its own that takes only the CPU time that nobody wants.

So neither the rounds nor the workers of the same machine wait for an evaluation. What is not done yet is caught up with
at the end.
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

import datasets
import models
import torch
from config import Config
from torch import nn
from torch.nn.functional import cross_entropy

MOST_PENDING_BYTES = 2 << 30
"""So many bytes of models may wait for their evaluation: then the PS waits."""
PR_SET_PDEATHSIG = 1

Scores = tuple[float, float]
"""Accuracy, and mean loss."""


class Evaluator:
    """Scores models in the order in which they come, each with something that the caller wants back with its scores."""

    def __init__(self, config: Config, data_dir: Path | None) -> None:
        spawn = multiprocessing.get_context("spawn")  # fptps does not live on in a forked child
        self._pool = ProcessPoolExecutor(1, spawn, _begin, (config, data_dir))
        self._pending: deque[tuple[Any, Future[Scores]]] = deque()

    def submit(self, model: nn.Module, companion: Any) -> None:
        """A copy of the model is scored on config.test_samples samples, later."""
        self._submit(model, companion, everything=False)

    def score(self, model: nn.Module) -> Scores:
        """The scores on the whole test set. Waits."""
        self._submit(model, None, everything=True)
        return self._pending.pop()[1].result()

    def scored(self, wait: bool) -> Iterator[tuple[Any, Scores]]:
        """What has been scored meanwhile. wait: all that was submitted."""
        while self._pending:
            companion, future = self._pending[0]
            if not (wait or future.done() or len(self._pending) * self._model_bytes > MOST_PENDING_BYTES):
                return
            scores = future.result()
            self._pending.popleft()
            yield companion, scores

    def give_up(self) -> Iterator[Any]:
        """The companions of what has not been scored, and never will be."""
        while self._pending:
            yield self._pending.popleft()[0]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, model: nn.Module, companion: Any, everything: bool) -> None:
        state = {name: t.numpy().copy() for name, t in model.state_dict().items()}
        self._model_bytes = sum(array.nbytes for array in state.values())
        self._pending.append((companion, self._pool.submit(_score, state, everything)))


def _begin(config: Config, data_dir: Path | None) -> None:
    """In the process: loads what it needs."""
    global _model, _data, _part
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # never outlives the PS
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the PS
    os.nice(19)
    torch.set_num_threads(1)
    _data = datasets.load(config.dataset_type, data_dir)
    _model = models.build(config.model_type, _data.inputs(_data.test_x[:1]), config.seed)
    order = torch.randperm(len(_data.test_y), generator=torch.Generator().manual_seed(config.seed))
    _part = order[: config.test_samples or len(order)]


def _score(state: dict[str, Any], everything: bool) -> Scores:
    _model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    return evaluate(_model, _data, torch.arange(len(_data.test_y)) if everything else _part)


@torch.no_grad()
def evaluate(model: nn.Module, data: datasets.Dataset, part: torch.Tensor, size: int = 50) -> Scores:
    """Accuracy and mean loss on a part of the test set."""
    model.eval()
    right, loss = 0, 0.0
    for batch in part.split(size):
        scores, y = model(data.inputs(data.test_x[batch])), data.test_y[batch]
        right += int((scores.argmax(1) == y).sum())
        loss += cross_entropy(scores, y, reduction="sum").item()
    return right / len(part), loss / len(part)
