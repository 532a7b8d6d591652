"""Runs PyTorch's own tests of a CPU backend (torch/testing/_internal/distributed/distributed_test.py) on "fptps".

    python scripts/torch_distributed_tests.py [--backend fptps] [--like gloo] [--match TEXT] [--output FILE]

Prints a line for each test: passed, failed or skipped, and why. Each test runs in 3 processes. The package expecttest
is needed, which PyTorch's tests import.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

WORKERS = 3
TIMEOUT_S = 60


def suite_of(backend: str, like: str) -> type[unittest.TestCase]:
    """PyTorch's test case for a backend, with the tests that PyTorch has for the backend `like` alone."""
    os.environ.update(
        BACKEND=like, WORLD_SIZE=str(WORKERS), OMP_NUM_THREADS="1", TEMP_DIR=tempfile.mkdtemp(prefix="fptps-torch-"),
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(TIMEOUT_S),
    )  # fmt: skip
    import torch.multiprocessing
    from torch.testing._internal.distributed import distributed_test

    distributed_test.BACKEND = backend  # the decorators have read the name already

    class Case(  # type: ignore[no-untyped-call]
        distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
    ):
        def _spawn_processes(self) -> None:
            # PyTorch starts them anew, each of which imports PyTorch: longer than most tests.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    Case.__module__, Case.__qualname__ = __name__, "Case"
    globals()["Case"] = Case
    return Case


class Result(unittest.TestResult):
    """Prints each test's outcome as it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, tuple[str, str]] = {}

    def _note(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        name = test.id().rpartition(".")[2]
        self.outcomes[name] = outcome, why
        print(
            f"{outcome:8}{name}  {why.strip().splitlines()[-1][:150] if why.strip() else ''}",
            file=sys.__stdout__,
            flush=True,
        )

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        self._note(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="fptps")
    parser.add_argument("--like", default="gloo", help="the backend whose tests are run: gloo, or mpi")
    parser.add_argument("--match", default="", help="only tests whose name contains it")
    parser.add_argument("--output", type=Path, help="a JSON file of the outcomes")
    options = parser.parse_args()
    case = suite_of(options.backend, options.like)
    names = [name for name in unittest.defaultTestLoader.getTestCaseNames(case) if options.match in name]
    result = Result()
    with contextlib.redirect_stderr(io.StringIO()):
        unittest.TestSuite(case(name) for name in names).run(result)
    counts = {
        o: sum(1 for outcome, _ in result.outcomes.values() if outcome == o) for o in ("passed", "failed", "skipped")
    }
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if options.output:
        options.output.write_text(json.dumps(result.outcomes, indent=1))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
