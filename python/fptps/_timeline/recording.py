"""Recordings of one worker: KVWorker.timeline()."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from .._session import Session


class Recording:
    """A worker is traced, until stop() or the end of the `with` block. Made by KVWorker.timeline()."""

    def __init__(self, session: Session, path: str | os.PathLike[str], sampling: str) -> None:
        self._session = session
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise FileNotFoundError(
                f"timeline(): {self._path} cannot be written: there is no folder {self._path.parent}"
            )
        session.core.start_trace(session.usable(), sampling)

    def stop(self) -> None:
        """Ends the recording and writes the file. ValueError if it has ended already; OSError if the file cannot be
        written."""
        from .chrome import write
        from .part import SUFFIX, decode

        part = self._path.with_name(self._path.name + SUFFIX)
        self._session.core.stop_trace(self._session.usable(), str(part))
        write(self._path, [decode(part.read_bytes(), str(part))])
        part.unlink()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
