"""MXNet's kvstore, whose wheel embeds ps-lite, as workers, servers and scheduler of clusters with ours.

`make peers` installs MXNet in .venv-mxnet; without it these tests are skipped.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ps_cluster import SCHEDULER, cluster, run
from ps_kvstore import KEEPING_SERVER, SERVER, SETTINGS, WORKER, expected, results

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-mxnet" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "mxnet_programs"

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(not PYTHON.exists(), reason="MXNet is not installed: `make peers` puts it in .venv-mxnet"),
]

MXNET = [str(PYTHON), "-c", "import mxnet"]
"""MXNet's server or scheduler: it takes its role as it is imported, and ends with it."""
MXNET_WORKER = [str(PYTHON), str(PROGRAMS / "kvstore.py"), "3"]


@pytest.mark.parametrize(
    ("scheduler", "servers", "workers", "keep"),
    [
        (SCHEDULER, [MXNET, SERVER], [MXNET_WORKER, WORKER], False),
        (MXNET, [MXNET, SERVER], [MXNET_WORKER, WORKER], False),
        (MXNET, [SERVER], [WORKER, WORKER], False),
        (SCHEDULER, [MXNET], [WORKER, WORKER, WORKER], False),
        (SCHEDULER, [KEEPING_SERVER, KEEPING_SERVER], [MXNET_WORKER, MXNET_WORKER], True),
    ],
    ids=["our scheduler", "its scheduler", "its scheduler alone", "its server alone", "sum kept"],
)
def test_mixes(scheduler, servers, workers, keep):
    programs = [("scheduler", scheduler)] + [("server", s) for s in servers] + [("worker", w) for w in workers]
    found = results(run(len(workers), len(servers), *programs, **SETTINGS))
    assert [result["rank"] for result in found] == list(range(len(workers)))
    for result in found:
        assert result["rounds"] == expected(len(workers), 3, keep)


def test_tensors_are_refused():
    """fptps.KVWorker cannot join a cluster with programs of ps-lite; its error names the classes to use."""
    with cluster(1, 1) as made:
        made.start("scheduler", SCHEDULER)
        made.start("server", MXNET)
        worker = made.start("worker", [sys.executable, "-c", "import fptps; fptps.KVWorker()"])
        made.wait(worker, code=1)
        assert "ConfigError: programs of dmlc ps-lite are in this cluster: use fptps.ps.KVWorker" in made.errors(worker)


def test_worker_is_replaced():
    """A worker of MXNet's is killed, and another gets its rank; the survivor, its program unchanged, goes on."""
    interactive = [str(PYTHON), str(PROGRAMS / "interactive.py")]
    beat = {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "3"}  # else no node learns of its death
    with cluster(2, 1, **SETTINGS, **beat) as made:
        scheduler = made.start("scheduler", SCHEDULER)
        server = made.start("server", SERVER)
        workers = [made.start("worker", interactive, stdin=subprocess.PIPE, PS_VERBOSE="2") for _ in range(2)]
        workers.sort(key=lambda number: made.answer(number, 0)["rank"])
        made.command_all(workers, "round", {"got": [3.0] * 4})
        while made.errors(workers[1]).count("cmd=HEARTBEAT") < 2:  # till it is answered, silence means nothing
            assert made.processes[workers[1]].poll() is None, made.all_output()
        made.kill(workers[1])
        workers[1], hello = made.start_interactive("worker", interactive)
        assert hello == {"rank": 1}
        made.command_all(workers, "round", {"got": [3.0] * 4})
        made.command_all(workers, "end", None)
        made.wait(*workers, server, scheduler)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The handwritten digits, in a file for MXNet's Python."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, images=(images / 16).astype(np.float32), labels=labels)
    return str(path)


def train(digits, server, on_servers, store="dist_sync"):
    """Two workers and two servers with our scheduler; gives the workers' results."""
    worker = [str(PYTHON), str(PROGRAMS / "digits.py"), digits, store, str(int(on_servers))]
    programs = [("scheduler", SCHEDULER), *[("server", server)] * 2, *[("worker", worker)] * 2]
    found = results(run(2, 2, *programs, **SETTINGS))
    assert [result["rank"] for result in found] == [0, 1]
    assert found[0]["weights"] == found[1]["weights"]
    return found


@pytest.fixture(scope="module")
def with_its_servers(digits):
    """What a training ends with whose optimizer runs on MXNet's servers."""
    return train(digits, MXNET, True)


def test_training_with_its_servers(with_its_servers):
    """Our scheduler, its servers, its workers."""
    assert min(result["accuracy"] for result in with_its_servers) > 0.9


def test_training_with_our_servers(digits, with_its_servers):
    """Our servers sum, and the workers have the optimizer: the same weights to the bit, as two numbers have one sum.

    MXNet's own servers are no measure for this: where they only sum, the workers' weights differ in most runs.
    """
    assert train(digits, SERVER, False)[0]["weights"] == with_its_servers[0]["weights"]


@pytest.mark.parametrize("on_servers", [True, False])
def test_training_with_our_store(digits, with_its_servers, on_servers):
    """fptps.mxnet's store in the place of `dist_sync`: the same weights but for rounding."""
    ours, theirs = (
        np.array(found[0]["weights"]) for found in (train(digits, SERVER, on_servers, "distfptps"), with_its_servers)
    )
    assert np.abs(theirs).max() > 0.5
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
