"""A file with a line of JSON for each thing that a benchmark does on a worker, and when."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType


class Timeline:
    """Appends to a file during a `with` block, or nothing to none. Workers of one machine may share the file.

    Times are seconds by time.monotonic(), which all processes of a machine share; time.perf_counter() is the same on
    Linux.
    """

    def __init__(self, path: Path | None, rank: int) -> None:
        self._file = None if path is None else path.open("ab", buffering=0)  # a line is one write: none is torn
        self._rank = rank

    def add(self, name: str, number: int, begin: float, end: float) -> None:
        """The number-th thing of this name, from 0."""
        if self._file is not None:
            line = {"name": name, "rank": self._rank, "number": number, "begin": begin, "end": end}
            self._file.write(json.dumps(line).encode() + b"\n")

    def __enter__(self) -> Timeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
