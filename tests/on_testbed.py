"""What the tests of benchmarks.testbed share."""

import io
import os
import socket
import subprocess
import sys

import pytest
from benchmarks import testbed
from benchmarks.testbed.network import tool

WHY_NOT = testbed.why_not()
needs_network = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def kernel_resets():
    """Whether the kernel lets this process reset connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address) as connection:
            command = [tool("ss"), "--kill", "--tcp", "dport", "=", f":{address[1]}"]
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            connection.setblocking(False)
            try:
                return connection.recv(1) is None
            except BlockingIOError:
                return False
            except ConnectionError:
                return True


needs_resets = pytest.mark.skipif(
    WHY_NOT is not None or not kernel_resets(),
    reason="the kernel has no CONFIG_INET_DIAG_DESTROY, or needs root",
)
COMMAND = [sys.executable, "-m", "benchmarks.testbed"]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path)}


def environment():
    """Of the command: this process's, without what a fixture has taken out."""
    return {**os.environ, **ENVIRONMENT}


def run(bed, program):
    """Runs a program on a test bed: the exit code, and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    return bed.run(program, ENVIRONMENT, out, err), out.getvalue(), err.getvalue()
