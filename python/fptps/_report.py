"""What a worker notes for the `fptps run` or LocalCluster that has started it: that it takes part, or has left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ._environment import REPORT

LEFT = "left"


class Report(NamedTuple):
    """What a worker has noted."""

    rank: int | None = None
    """None: it does not take part yet."""
    left: bool = False
    """It has left in good order: it has done its part."""


def takes_part(rank: int) -> None:
    """Notes the rank of this worker, which takes part in the training from now on."""
    _note(str(rank))


def left() -> None:
    """Notes that this worker has left its cluster in good order."""
    _note(LEFT)


def read(path: Path) -> Report:
    """What the worker that has this file has noted."""
    lines = path.read_text().split("\n")[:-1]  # a killed worker may have written half a line
    ranks = [int(line) for line in lines if line != LEFT]
    return Report(ranks[-1] if ranks else None, LEFT in lines)


def _note(text: str) -> None:
    path = os.environ.get(REPORT)
    if path and os.path.exists(path):  # else nobody reads it any more
        with open(path, "a") as file:
            file.write(f"{text}\n")
