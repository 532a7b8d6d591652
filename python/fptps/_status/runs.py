"""The runs that `fptps run` has under way on this machine, for `fptps status` of the same user."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Run(NamedTuple):
    """A run that is under way."""

    pid: int
    """Of `fptps run`."""
    host: str
    port: int
    """Where its scheduler listens."""
    token: str
    since: float
    """Unix time, seconds."""
    program: str

    @property
    def address(self) -> str:
        """HOST:PORT of the scheduler."""
        return f"{self.host}:{self.port}"


@contextlib.contextmanager
def noted(host: str, port: int, token: str, program: list[str]) -> Iterator[None]:
    """Notes a run of this process in a file that only this user can read, until the end of the context."""
    file = None
    with contextlib.suppress(OSError):  # a run needs no folder for that
        folder = _folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        if _is_own(folder):
            file = folder / f"{os.getpid()}.json"
            run = Run(os.getpid(), host, port, token, time.time(), " ".join(program))
            file.unlink(missing_ok=True)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                json.dump({**run._asdict(), "born": _born(run.pid)}, out)
    try:
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                file.unlink()


def under_way() -> list[Run]:
    """The runs of this user, the oldest first. Removes what killed ones have left behind."""
    runs = []
    folder = _folder()
    if not _is_own(folder):
        return []
    for file in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # it has just ended, or is half written
            noted_run = json.loads(file.read_text())
            born = noted_run.pop("born")
            run = Run(**noted_run)
            if born is not None and _born(run.pid) == born:
                runs.append(run)
            else:
                file.unlink()
    return sorted(runs, key=lambda run: run.since)


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / "fptps"
    return Path(tempfile.gettempdir()) / f"fptps-{os.getuid()}"


def _is_own(folder: Path) -> bool:
    """Whether a folder is this user's alone: anybody can make one in the temporary folder."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _born(pid: int) -> str | None:
    """When a process was started, in the kernel's ticks; None if there is none. A later one may have its pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
