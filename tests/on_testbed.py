"""What the tests of benchmarks.testbed share."""

import io
import os
import sys

import pytest
from benchmarks import testbed

WHY_NOT = testbed.why_not()
needs_network = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
COMMAND = [sys.executable, "-m", "benchmarks.testbed"]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path)}


def environment():
    """Of the command: this process's, without what a fixture has taken out."""
    return {**os.environ, **ENVIRONMENT}


def run(bed, program):
    """Runs a program on a test bed: the exit code, and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    return bed.run(program, ENVIRONMENT, out, err), out.getvalue(), err.getvalue()
