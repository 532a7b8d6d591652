"""Runs a program of benchmarks.links at a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from fptps.cluster._supervisor import SPAWN

from .quantities import TestBedError

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE_S: Final = 10.0


class Program:
    """A program in a namespace. It ends when its input does, or with the thread that started it.

    enter: the prefix of a command to run it there.
    """

    def __init__(self, enter: list[str], module: str, *arguments: str) -> None:
        self._name = module
        pipe = subprocess.PIPE
        python = [sys.executable, "-S", "-m", f"benchmarks.links.{module}", *arguments]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", SPAWN, str(os.getpid()), *enter, *python],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,  # Ctrl-C must not reach it
        )
        self.pid = self._process.pid

    def read(self) -> str:
        """Its next line; TestBedError if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.fail()
        return line

    def fail(self) -> None:
        """Raises what it said when it ended."""
        assert self._process.stderr is not None
        said = self._process.stderr.read().strip() or "nothing"
        raise TestBedError(f"the test bed's program {self._name} has ended, and said: {said.splitlines()[-1]}")

    def write(self) -> None:
        """Writes a line to it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.fail()

    def finish(self, patience_s: float = PATIENCE_S) -> str:
        """Ends its input; returns the rest of its output."""
        try:
            out, err = self._process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise TestBedError(f"the test bed's program {self._name} did not end") from None
        if self._process.returncode:
            raise TestBedError(f"the test bed's program {self._name}: {err.strip().splitlines()[-1]}")
        return out

    def end(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        with self._process:  # closes the pipes and waits
            pass
