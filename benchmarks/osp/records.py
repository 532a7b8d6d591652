"""The PS's files: one new folder for each run."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import fptps

from . import config as settings
from .config import SetupError
from .evaluator import Scores
from .link import Report

SPARE_BYTES = 16 << 20


class Moment(NamedTuple):
    """The end of a round."""

    round: int
    iterations: int
    elapsed_s: float


class Lines:
    """A file of JSON lines. A line is written as a whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)  # unbuffered: tell() is the end of the last whole line

    def append(self, line: dict[str, Any]) -> None:
        raw, before = json.dumps(line).encode() + b"\n", self._file.tell()
        try:
            if self._file.write(raw) != len(raw):
                raise OSError(f"{self._file.name}: the disk is full")
        except OSError:
            self._file.truncate(before)
            raise

    def close(self) -> None:
        self._file.close()


class Records:
    """config.json, messages.jsonl (a line per worker and round), rounds.jsonl, summary.json, weights.pt.

    Lines are written as rounds end: an interrupted run keeps its lines, and has no summary.json.
    """

    def __init__(self, config: settings.Config, algorithm: str, folder: Path | None, model: nn.Module) -> None:
        self.config = config
        self.algorithm = algorithm
        self.folder = new_folder(Path(config.output_dir), algorithm) if folder is None else this_folder(folder)
        needed = SPARE_BYTES + 2 * sum(t.nbytes for t in model.state_dict().values())
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise SetupError(f"{self.folder}: {free >> 20} MB are free on its disk, but {needed >> 20} MB are needed")
        write(self.folder / "config.json", settings.to_json(config))
        self._messages, self._rounds = Lines(self.folder / "messages.jsonl"), Lines(self.folder / "rounds.jsonl")
        self._start: float | None = None
        self._totals = {"communication_s": 0.0, "waited_s": 0.0, "bytes_workers_to_ps": 0, "bytes_ps_to_workers": 0}
        self._last = Moment(0, 0, 0.0)

    def start(self) -> None:
        """The training begins or continues. The clock starts with the first call."""
        if self._start is None:
            self._start = time.perf_counter()

    def stop(self) -> None:
        """The training has ended."""
        self._training_s = self.elapsed()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return 0.0 if self._start is None else time.perf_counter() - self._start

    def messages(self, reports: list[tuple[int, Report]], number: int) -> None:
        """Every worker's report of a round."""
        for rank, report in reports:
            self._messages.append({"round": number, "rank": rank, **report._asdict()})
            # The workers wait at the same time: their mean is part of the elapsed time, their sum is not.
            self._totals["communication_s"] += report.communication_s / len(reports)
            self._totals["waited_s"] += report.waited_s / len(reports)
            self._totals["bytes_workers_to_ps"] += report.bytes_sent
            self._totals["bytes_ps_to_workers"] += report.bytes_sent  # a sum has the size of a message

    def round(self, moment: Moment, scores: Scores | None) -> None:
        """A round, and the scores of its model; None if it was not evaluated."""
        self._last = moment
        accuracy, loss = scores or (None, None)
        progress = moment.iterations / self.config.all_iterations
        evaluation = {"test_accuracy": accuracy, "test_loss": loss, "elapsed_s": moment.elapsed_s}
        self._rounds.append(
            {"round": moment.round, "iterations": moment.iterations, "progress": progress, **evaluation}
        )

    def end(self, model: nn.Module, scores: Scores | None, how: str) -> None:
        """Writes the last files: the weights, and the summary with the scores on the whole test set."""
        self._messages.close()
        self._rounds.close()
        part = self.folder / "weights.part"
        torch.save(model.state_dict(), part)
        part.replace(self.folder / "weights.pt")
        accuracy, loss = scores or (None, None)
        summary = {
            "algorithm": self.algorithm,
            "ended": how,
            "rounds": self._last.round,
            "iterations": self._last.iterations,
            "test_accuracy": accuracy,
            "test_loss": loss,
            "training_s": self._training_s,
            **self._totals,
            "versions": versions(),
        }
        write(self.folder / "summary.json", json.dumps(summary, indent=4))


def versions() -> dict[str, str]:
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fptps": fptps.__version__,
        "machine": machine,
    }


def write(path: Path, text: str) -> None:
    """Writes the whole file or nothing."""
    part = path.with_suffix(".part")
    part.write_text(text + "\n")
    part.replace(path)


def this_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise SetupError(f"{folder} is there already: give --run-dir a folder that is not, or remove it") from None
    return folder


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
