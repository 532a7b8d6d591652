"""What the PS writes: one new folder for each run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import config as settings
import models
import torch
from link import Report


class Records:
    """config.json, messages.jsonl (a line per worker and round), rounds.jsonl, summary.json, weights.pt.

    Lines are written as they come: an interrupted run keeps what it has, and has no summary.json.
    """

    def __init__(self, config: settings.Config, algorithm: str) -> None:
        self.config = config
        self.algorithm = algorithm
        self.folder = new_folder(Path(config.output_dir), algorithm)
        (self.folder / "config.json").write_text(settings.to_json(config) + "\n")
        self._messages = (self.folder / "messages.jsonl").open("w", buffering=1)
        self._rounds = (self.folder / "rounds.jsonl").open("w", buffering=1)
        self._start = time.perf_counter()
        self._last: dict[str, float] = {}
        self._communication_s = 0.0
        self._to_ps = self._to_workers = 0

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self._messages.close()
        self._rounds.close()

    def round(self, reports: list[Report], iterations: int, accuracy: float, loss: float, answer_bytes: int) -> None:
        """One round: every worker's report, and the evaluation of the model that it led to."""
        number = int(self._last.get("round", 0)) + 1
        for rank, report in enumerate(reports, start=1):
            self._messages.write(json.dumps({"round": number, "rank": rank, **report._asdict()}) + "\n")
        self._last = {
            "round": number,
            "iterations": iterations,
            "progress": iterations / self.config.all_iterations,
            "test_accuracy": accuracy,
            "test_loss": loss,
            "elapsed_s": time.perf_counter() - self._start,
        }
        self._rounds.write(json.dumps(self._last) + "\n")
        # The workers wait at the same time: their mean is a share of the elapsed time, their sum is not.
        self._communication_s += sum(report.communication_s for report in reports) / len(reports)
        self._to_ps += sum(report.bytes_sent for report in reports)
        self._to_workers += answer_bytes * len(reports)

    def end(self, model: models.FlatModel) -> None:
        torch.save(model.net.state_dict(), self.folder / "weights.pt")
        summary = {
            "algorithm": self.algorithm,
            "rounds": self._last["round"],
            "iterations": self._last["iterations"],
            "test_accuracy": self._last["test_accuracy"],
            "test_loss": self._last["test_loss"],
            "training_s": time.perf_counter() - self._start,
            "communication_s": self._communication_s,
            "bytes_workers_to_ps": self._to_ps,
            "bytes_ps_to_workers": self._to_workers,
        }
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=4) + "\n")


def new_folder(parent: Path, algorithm: str) -> Path:
    """A folder of this run alone, named by time and algorithm; runs of the same second are numbered."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{algorithm}"
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder
