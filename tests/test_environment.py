"""A process runs alone only if no variable says that it is one of several; misspelt names are logged."""

import logging
import os
import subprocess
import sys

import pytest

import fptps
from fptps import _environment, ps

CLUSTER = {"DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "9000", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "0"}


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """None of this machine's own variables."""
    for name in [*CLUSTER, "DMLC_ROLE", *_environment.LAUNCHERS]:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", _environment.LAUNCHERS)
def test_other_launchers_processes_do_not_train_alone(monkeypatch, name):
    monkeypatch.setenv(name, "4")
    with pytest.raises(fptps.ConfigError, match=rf"{name}=4: .* started 4 processes.*DMLC_PS_ROOT_URI=HOST"):
        fptps.KVWorker()


@pytest.mark.parametrize("name", _environment.LAUNCHERS)
@pytest.mark.parametrize("size", ["1", "", "many"])
def test_a_single_process_of_another_launcher_is_alone(monkeypatch, name, size):
    monkeypatch.setenv(name, size)
    with fptps.KVWorker() as kv:
        assert kv.num_workers == 1


def test_alone_on_purpose(monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with fptps.KVWorker(num_workers=1) as kv:
        assert kv.num_workers == 1
    assert caplog.records == []


def test_every_process_of_such_a_launcher_ends_with_an_error():
    """As torchrun and others see it."""
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "0"}
    code = "import fptps\nwith fptps.KVWorker() as kv: pass"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ConfigError: WORLD_SIZE=2: torchrun started 2 processes" in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DMLC_PS_ROOT_URL", "DMLC_PS_ROOT_URI"),
        ("DMLC_NUM_WORKERS", "DMLC_NUM_WORKER"),
        ("PS_ROOT_URI", "DMLC_PS_ROOT_URI"),
    ],
)
def test_misspelt_cluster_does_not_train_alone(monkeypatch, name, meant):
    monkeypatch.setenv(name, "10.0.0.1")
    with pytest.raises(fptps.ConfigError, match=rf"would run alone.*{name} \(did you mean {meant}\?\)"):
        fptps.KVWorker()


def test_running_alone_is_logged(caplog):
    with fptps.KVWorker():
        (record,) = caplog.records
    assert (record.name, record.levelno) == ("fptps", logging.WARNING)
    assert record.getMessage().startswith("running alone: ")


def test_the_warning_is_printed_in_a_fresh_process():
    done = subprocess.run(
        [sys.executable, "-c", "import fptps; fptps.KVWorker().close()"], capture_output=True, text=True, check=True
    )
    assert 'level=WARN msg="running alone: ' in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FPTPS_LINKRATE", "FPTPS_LINK_RATE"),
        ("PS_HEARTBEAT_TIMOUT", "PS_HEARTBEAT_TIMEOUT"),
        ("FPTPS_TOKN", "FPTPS_TOKEN"),
        ("DMLC_TOKEN", ""),
        ("FPTPS_SOMETHING_ELSE", ""),
    ],
)
def test_unknown_names(monkeypatch, caplog, name, meant):
    monkeypatch.setenv(name, "1")
    assert _environment.unknown(os.environ) == {name: meant}
    with fptps.KVWorker(num_workers=1):
        (record,) = caplog.records
    assert record.levelno == logging.WARNING
    asked = f"{name} (did you mean {meant}?)" if meant else name
    assert record.getMessage().endswith(f"ignores: {asked}")


@pytest.mark.parametrize("role", ["scheduler", "server"])
def test_nodes_log_unknown_names(role):
    environment = {**os.environ, "DMLC_PS_ROOT_URL": "x"}
    done = subprocess.run(
        [sys.executable, "-m", "fptps", role], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "DMLC_PS_ROOT_URL (did you mean DMLC_PS_ROOT_URI?)" in done.stderr


def test_a_node_of_ps_logs_unknown_names(monkeypatch, caplog):
    monkeypatch.setenv("DMLC_PS_ROOT_URL", "x")
    with pytest.raises(fptps.ConfigError):
        ps.start()
    (record,) = caplog.records
    assert record.getMessage().endswith("ignores: DMLC_PS_ROOT_URL (did you mean DMLC_PS_ROOT_URI?)")


def test_known_names():
    known = {**CLUSTER, "DMLC_ROLE": "worker", "FPTPS_TOKEN": "x", "PORT": "1", "PS_RESEND": "1", "DMLC_LOCAL": "0"}
    assert _environment.unknown({**known, "PATH": "x", "FPTPS_KEEP_GOING": "1", "FPTPS_EMPTY": ""}) == {}
    assert not _environment.IGNORED & set(CLUSTER)
