"""The role of rank 0: follows the global model, has each round's evaluated, and writes the records."""

from __future__ import annotations

import zlib
from pathlib import Path

import algorithms
import datasets
import models
from config import Config
from evaluator import Evaluator
from link import TRAINING, Link
from records import Moment, Records
from tqdm import tqdm

from fptps.torch.local import Local


class Ps:
    """Follows one cluster after another, should one be lost: the global model and the records go on."""

    rank = 0

    def __init__(self, algorithm: str, config: Config, data: datasets.Dataset) -> None:
        self.algorithm = algorithm
        self.config = config
        self.data = data
        self.model = models.build(config.model_type, data.inputs(data.test_x[:1]), config.seed)
        self.round = self.iterations = 0
        self._evaluator: Evaluator | None = None

    def open_records(self, folder: Path | None, data_dir: Path | None) -> None:
        """Makes the run's folder: SetupError or OSError where that cannot be."""
        self.records = Records(self.config, self.algorithm, folder, self.model)
        self._evaluator = Evaluator(self.config, data_dir)

    def train(self, link: Link) -> None:
        """Follows to the end. NodeLostError leaves everything as of the last round."""
        local = algorithms.make(self.algorithm, link.kv, self.model, None, self.config, TRAINING)
        local.round, local.iterations = self.round, self.iterations
        self.records.start()
        total = self.config.all_iterations
        # So narrow that it fits, behind `fptps run`'s "[worker 0] ", into a terminal of 80 columns.
        with tqdm(total=total, initial=self.iterations, desc=self.algorithm, unit="it", ncols=68) as bar:
            while not local.finished:
                local.follow()
                self._record(link, local)
                for moment, scores in self._evaluator.scored(wait=False):
                    self.records.round(moment, scores)
                    bar.set_postfix(accuracy=f"{scores[0]:.4f}", refresh=False)
                bar.update(min(local.iterations, total) - bar.n)

    def _record(self, link: Link, local: Local) -> None:
        """A round has ended: its model is to be scored, and its messages are written."""
        at = self.records.elapsed()
        self.round, self.iterations = local.round, local.iterations
        self._evaluator.submit(self.model, Moment(local.round, local.iterations, at))
        told = link.reports()
        crc = zlib.crc32(local.w.numpy())
        for rank, report in told:
            if report.model_crc32 != crc:
                raise RuntimeError(f"round {local.round}: rank {rank} has another global model than the PS")
        self.records.messages(told, local.round)

    def end(self) -> None:
        """All iterations are done: the last evaluations."""
        self.records.stop()
        for moment, scores in self._evaluator.scored(wait=True):
            self.records.round(moment, scores)
        scores = self._evaluator.score(self.model)
        self.records.end(self.model, scores, "all iterations are done")
        print(
            f"{self.algorithm}: accuracy {scores[0]:.4f} after {self.iterations} iterations; "
            f"records in {self.records.folder}"
        )

    def end_early(self, why: str) -> None:
        """The files are whole: what has not been evaluated yet has no scores."""
        self.records.stop()
        for moment in self._evaluator.give_up():
            self.records.round(moment, None)
        self.records.end(self.model, None, why)
        print(f"{self.algorithm}: ended after {self.iterations} iterations: {why}; records in {self.records.folder}")

    def close(self) -> None:
        """Ends the process that evaluates, whatever it still has to do."""
        if self._evaluator:
            self._evaluator.close()
