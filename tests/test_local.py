"""fptps.LocalCluster: functions on real processes, their results and their exceptions."""

import os
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from helpers import pass_gate

import fptps


class Odd(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__("odd")


def test_results_by_rank():
    def work(base, array):
        with fptps.KVWorker() as kv:
            kv.init(0, array)
            sum_ = kv.push_pull(0, array + kv.rank).result()
            return kv.rank, kv.num_workers, kv.num_servers, os.environ["DMLC_WORKER_ID"], base, sum_

    results = fptps.LocalCluster(2, 1).run(work, "base", np.zeros(3))
    assert [result[:5] for result in results] == [(0, 2, 1, "0", "base"), (1, 2, 1, "1", "base")]
    assert all(result[5].tolist() == [1, 1, 1] for result in results)


def test_function_without_a_cluster_and_environment(capsys):
    def work():
        print("hello")
        return os.environ["SOME_SETTING"], os.getpid()

    results = fptps.LocalCluster(2, 0, environment={"SOME_SETTING": "x"}).run(work)
    assert [setting for setting, _ in results] == ["x", "x"]
    assert len({pid for _, pid in results} | {os.getpid()}) == 3
    assert sorted(line for line in capsys.readouterr().out.splitlines() if "hello" in line) == [
        "[worker 0] hello",
        "[worker 1] hello",
    ]


def test_exception_of_a_rank():
    def work():
        with fptps.KVWorker() as kv:
            kv.barrier()
            if kv.rank == 1:
                raise ZeroDivisionError("on purpose")
            kv.barrier()

    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        fptps.LocalCluster(2, 1).run(work)
    assert isinstance(caught.value.__cause__, fptps.RankError)
    assert "worker 1 (pid" in str(caught.value.__cause__)
    assert 'raise ZeroDivisionError("on purpose")' in str(caught.value.__cause__)


def test_exception_that_cannot_be_pickled():
    def work():
        raise Odd(1, 2)

    with pytest.raises(fptps.RankError, match=r"(?s)worker 0.*Odd: odd"):
        fptps.LocalCluster(1, 0).run(work)


def test_result_that_cannot_be_pickled():
    with pytest.raises(TypeError, match="pickle"):
        fptps.LocalCluster(1, 0).run(lambda: sys._getframe())


def test_exit_of_a_rank():
    with pytest.raises(SystemExit):
        fptps.LocalCluster(1, 0).run(lambda: sys.exit(3))
    with pytest.raises(fptps.NodeLostError, match=r"worker 0 .* ended with exit code 3 before"):
        fptps.LocalCluster(1, 0).run(lambda: os._exit(3))


def test_killed_worker(gate):
    def work():
        with fptps.KVWorker() as kv:
            pass_gate(gate_address, kv.rank)
            kv.barrier()

    gate_address = gate.address
    with fptps.LocalCluster(2, 1).start(work) as run:
        gate.wait(2)
        assert [(p.role, p.rank) for p in run.processes] == [
            ("scheduler", 0),
            ("server", 0),
            ("worker", 0),
            ("worker", 1),
        ]
        os.kill(run.process("worker", 1).pid, signal.SIGKILL)
        gate.open()
        outcomes = run.outcomes()
        with pytest.raises(fptps.NodeLostError, match=r"worker 1 .* was killed by SIGKILL"):
            run.results()
    assert isinstance(outcomes[0].error, fptps.NodeLostError)
    assert "worker 1" in str(outcomes[0].error)
    assert run.process("worker", 1).returncode == -signal.SIGKILL
    with pytest.raises(KeyError, match="there is no server 1"):
        run.process("server", 1)


def test_run_that_takes_too_long():
    with pytest.raises(fptps.TimeoutError, match=r"after 1 s; still running were .*worker 0"):
        fptps.LocalCluster(1, 0, timeout=1).run(signal.pause)


def test_processes_end_with_the_block(gate):
    address = gate.address
    with fptps.LocalCluster(2, 0) as cluster:
        run = cluster.start(lambda: pass_gate(address))
        gate.wait(2)
    gate.wait_for_the_end()
    assert all(process.returncode is not None for process in run.processes)


@pytest.mark.parametrize(("workers", "servers"), [(0, 1), (1, -1)])
def test_invalid_numbers(workers, servers):
    with pytest.raises(
        ValueError, match=f"servers={servers}: a cluster has at least one worker, and 0 or more servers"
    ):
        fptps.LocalCluster(workers, servers)


def test_numbers_that_are_none():
    with pytest.raises(TypeError, match=r"^workers='a', servers=1: whole numbers are expected"):
        fptps.LocalCluster("a")


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("ranks", [[0, 1], [1]])
def test_worker_that_is_not_closed(keep, ranks):
    def work():
        kv = fptps.KVWorker()
        kv.barrier()
        if keep:
            sys.modules["__main__"].kept = kv
        if kv.rank not in ranks:
            kv.close()

    with pytest.raises(fptps.NodeLostError, match=rf"worker {ranks[0]} \(pid \d+\) ended without closing its KVWorker"):
        fptps.LocalCluster(2, 1).run(work)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files of this process, and those it starts, go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_no_folder_is_left(temporary):
    assert fptps.LocalCluster(1, 0).run(lambda: len(os.listdir(temporary))) == [1]
    with pytest.raises(TypeError, match="pickle"):
        fptps.LocalCluster(1, 0).run(lambda: temporary, sys._getframe())
    assert not os.listdir(temporary)


DROPPED_RUN = """
import fptps, helpers
run = fptps.LocalCluster(1, 0).start(lambda: helpers.pass_gate({address!r}))
input()
"""


def test_run_that_is_dropped_at_the_end_of_the_program(gate, temporary):
    code = DROPPED_RUN.format(address=gate.address)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE)
    gate.wait()
    program.communicate(b"\n", timeout=60)
    assert program.returncode == 0
    gate.wait_for_the_end()
    assert not os.listdir(temporary)
