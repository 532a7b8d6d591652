"""The role of rank 0: follows the global model, has each round's evaluated, and writes the records."""

from __future__ import annotations

import zlib

from torch import nn
from tqdm import tqdm

from fptps.torch.local import Local

from . import algorithms
from .config import Config
from .evaluator import Evaluator
from .link import TRAINING, Link
from .records import Moment, Records


class Ps:
    """Follows one cluster after another, if workers are lost: the global model and the records continue."""

    rank = 0

    def __init__(
        self, algorithm: str, config: Config, model: nn.Module, records: Records, evaluator: Evaluator
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        self.round = self.iterations = 0
        self._model = model
        self._records = records
        self._evaluator = evaluator

    def train(self, link: Link) -> None:
        """Follows until the end. NodeLostError leaves everything as of the last round."""
        local = algorithms.make(self.algorithm, link.kv, self._model, None, self.config, TRAINING)
        local.round, local.iterations = self.round, self.iterations
        self._records.start()
        total = self.config.all_iterations
        # Behind `fptps run`'s "[worker 0] ", it fits into a terminal of 80 columns.
        with tqdm(total=total, initial=self.iterations, desc=self.algorithm, unit="it", ncols=68) as bar:
            while not local.finished:
                local.follow()
                self._record(link, local)
                for moment, scores in self._evaluator.scored(wait=False):
                    self._records.round(moment, scores)
                    bar.set_postfix(accuracy=f"{scores[0]:.4f}", refresh=False)
                bar.update(min(local.iterations, total) - bar.n)

    def _record(self, link: Link, local: Local) -> None:
        """A round has ended: has its model scored, and writes its messages."""
        at = self._records.elapsed()
        self.round, self.iterations = local.round, local.iterations
        self._evaluator.submit(self._model, Moment(local.round, local.iterations, at))
        reports = link.reports()
        crc = zlib.crc32(local.w.numpy().data)
        for rank, report in reports:
            if report.model_crc32 != crc:
                raise RuntimeError(f"round {local.round}: rank {rank} has another global model than the PS")
        self._records.messages(reports, local.round)

    def end(self) -> None:
        """All iterations are done: completes the evaluations and the files."""
        self._records.stop()
        for moment, scores in self._evaluator.scored(wait=True):
            self._records.round(moment, scores)
        scores = self._evaluator.score(self._model)
        self._records.end(self._model, scores, "all iterations are done")
        print(
            f"{self.algorithm}: accuracy {scores[0]:.4f} after {self.iterations} iterations; "
            f"records in {self._records.folder}"
        )

    def end_early(self, why: str) -> None:
        """Completes the files: rounds that are not evaluated yet have no scores."""
        self._records.stop()
        for moment in self._evaluator.give_up():
            self._records.round(moment, None)
        self._records.end(self._model, None, why)
        print(f"{self.algorithm}: ended after {self.iterations} iterations: {why}; records in {self._records.folder}")

    def close(self) -> None:
        """Ends the process that evaluates; models that still wait are not scored."""
        self._evaluator.close()
