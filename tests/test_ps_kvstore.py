"""The server for MXNet's kvstore, with workers of ours that speak as MXNet's do: no MXNet is needed."""

import json
import sys

import pytest
from ps_cluster import SCHEDULER, run
from ps_kvstore import KEEPING_SERVER, SERVER, SETTINGS, WORKER, expected, results

from fptps.ps.mxnet import pair, unpair


def test_pairing():
    """Cantor's function: every command is one pair, and the pairs go along the diagonals."""
    pairs = [unpair(command) for command in range(1000)]
    assert [pair(*p) for p in pairs] == list(range(1000))
    assert pairs[:6] == [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)]


@pytest.mark.parametrize(("server", "keep"), [(SERVER, False), (KEEPING_SERVER, True)], ids=["sum", "sum kept"])
def test_sums(server, keep):
    programs = [("scheduler", SCHEDULER), *[("server", server)] * 2, *[("worker", WORKER)] * 3]
    found = results(run(3, 2, *programs, **SETTINGS))
    assert [result["rank"] for result in found] == [0, 1, 2]
    for result in found:
        assert result["rounds"] == expected(3, 3, keep)


def test_refusals():
    worker = [sys.executable, "-m", "ps_kvstore", "refused"]
    outputs = run(1, 1, ("scheduler", SCHEDULER), ("server", SERVER), ("worker", worker))
    got = json.loads(outputs[2][0])
    says = [
        "key 3 has no value yet: init it first", "ROW_SPARSE", "dtype 40", "command -1", "",
        "dist_async needs an updater", "",
        "key 3: 2 values of float32 pushed, it has 4 of float32", "command 77", "CONTROLLER", "CONTROLLER",
    ]  # fmt: skip
    assert len(got) == len(says)
    for error, text in zip(got, says):
        assert (text in error) if text else error == ""
