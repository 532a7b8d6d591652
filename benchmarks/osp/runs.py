"""Reads the folders that runs have written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import SetupError


@dataclass(frozen=True)
class Run:
    """A run that has ended. name: of its folder; the other fields: the content of its files."""

    name: str
    config: dict[str, Any]
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    messages: list[dict[str, Any]]

    @property
    def workers(self) -> int:
        return len({message["rank"] for message in self.messages})

    def curve(self, x: str, y: str) -> tuple[list[float], list[float]]:
        """Two columns of the rounds that were evaluated."""
        points = [(r[x], r[y]) for r in self.rounds if r[y] is not None]
        return [a for a, _ in points], [b for _, b in points]

    def first(self, column: str, accuracy: float) -> float | None:
        """A column of the first round whose model has this accuracy on the samples of each round's evaluation."""
        return next((r[column] for r in self.rounds if (r["test_accuracy"] or 0) >= accuracy), None)

    def per_round(self, column: str) -> float:
        """The mean of a column of the messages: of one worker in one round."""
        return float(sum(message[column] for message in self.messages) / len(self.messages))


def read(folder: Path) -> Run:
    """SetupError if the folder is not of a run that has ended."""
    try:
        whole = [json.loads((folder / name).read_text()) for name in ("config.json", "summary.json")]
        lines = [
            [json.loads(line) for line in (folder / name).read_text().splitlines()]
            for name in ("rounds.jsonl", "messages.jsonl")
        ]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SetupError(f"{folder} is not the folder of a run that has ended: {error.filename} is missing") from error
    if not all(lines):
        raise SetupError(f"{folder}: the run ended before its first round did")
    return Run(folder.name, *whole, *lines)
