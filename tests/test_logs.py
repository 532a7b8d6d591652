"""The log: one format for the core and Python, as text and as JSON, in every process of a cluster."""

import datetime
import json
import logging
import os
import re
import subprocess
import sys

import pytest

import fptps
from fptps import _logs

LEVELS = ["DEBUG", "INFO", "WARN", "ERROR"]
PROGRAM = """
import logging, sys
import numpy as np
import fptps

logging.getLogger("fptps").info('before "joining"')
with fptps.KVWorker() as kv:
    kv.init("w", np.zeros(4, np.float32))
    print(f"epoch {kv.rank}")
    print("\\r 10%\\r 20%", file=sys.stderr)
    logging.getLogger("fptps").warning("worker %d is here", kv.rank)
    kv.push_pull("w", np.ones(4, np.float32)).result()
    try:
        raise ValueError("for the log")
    except ValueError:
        logging.getLogger("fptps").exception("a done callback failed")
"""


def run(program, *options, **settings):
    """`fptps run` with settings: the process's end."""
    command = [sys.executable, "-m", "fptps", "run", *options, sys.executable, "-c", program]
    environment = {**os.environ, **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def records(text):
    """Lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_of_a_run_in_json_has_the_fields():
    done = run(PROGRAM, "-n", "2", "-s", "1", FPTPS_LOG_FORMAT="json", FPTPS_LOG="debug")
    assert done.returncode == 0, done.stderr
    lines = records(done.stdout) + records(done.stderr)
    for each in lines:
        assert datetime.datetime.fromisoformat(each["time"].replace("Z", "+00:00")).tzinfo
        assert each["level"] in LEVELS
        assert each["msg"]
        assert each["logger"] in ("fptps", "program")
        assert each["role"] in ("scheduler", "server", "worker", "launcher")
    assert [each["msg"][:5] for each in lines if each["role"] == "launcher"] == ["done:"]
    assert {each["role"] for each in lines} >= {"scheduler", "worker"}
    said = [each for each in lines if each["msg"].endswith("is here")]
    assert sorted((each["rank"], each["msg"]) for each in said) == [(0, "worker 0 is here"), (1, "worker 1 is here")]
    assert {(each["level"], each["logger"]) for each in said} == {("WARN", "fptps")}
    early = [each for each in lines if each["msg"] == 'before "joining"']
    assert [(each["role"], each.get("rank")) for each in early] == [("worker", None)] * 2
    printed = [each for each in records(done.stdout) if each["msg"].startswith("epoch")]
    assert sorted((each["rank"], each["msg"], each["stream"]) for each in printed) == [
        (0, "epoch 0", "stdout"),
        (1, "epoch 1", "stdout"),
    ]
    assert [each["msg"] for each in lines if each.get("stream") == "stderr"] == [" 20%"] * 2
    traces = [each["traceback"] for each in lines if each["msg"] == "a done callback failed"]
    assert [trace.splitlines()[-1] for trace in traces] == ["ValueError: for the log"] * 2


def test_a_failed_run_in_json():
    """The launcher's own lines, and those of nodes that end by an error."""
    program = "import fptps, os\nwith fptps.KVWorker() as kv:\n  if kv.rank: os._exit(3)\n  kv.barrier()"
    done = run(program, "-n", "2", "-s", "1", FPTPS_LOG_FORMAT="json")
    assert done.returncode == 3
    lines = records(done.stderr)
    assert any(each["role"] == "launcher" and "ended with exit code 3" in each["msg"] for each in lines)
    ends = {each["role"]: each for each in lines if each["level"] == "ERROR" and "worker 1 was lost" in each["msg"]}
    assert ends.keys() >= {"scheduler", "server"}
    assert ends["server"]["rank"] == 0
    assert "rank" not in ends["scheduler"]


def test_text():
    done = run(PROGRAM, "-n", "2", FPTPS_LOG="info")
    assert done.returncode == 0, done.stderr
    line = r'\[worker {rank}\] time=\S+ level=WARN msg="worker {rank} is here" logger=fptps role=worker rank={rank}$'
    for rank in range(2):
        assert re.search(line.format(rank=rank), done.stderr, re.MULTILINE)
        assert f"[worker {rank}] epoch {rank}\n" in done.stdout
        assert f"[worker {rank}] ValueError: for the log\n" in done.stderr
    assert 'level=INFO msg="before \\"joining\\"" logger=fptps role=worker\n' in done.stderr
    assert 'msg="scheduler: all nodes have joined" logger=fptps role=scheduler workers=2' in done.stderr


def test_python_writes_lines_as_the_core_does():
    """gocore/node/log_test.go has the same lines."""
    late = (logging.ERROR, "late", "fptps", ("server", 2), {"for": "1.5s", "key": 3})
    assert [without_time(_logs.line(json_, *late)) for json_ in (False, True)] == [
        "time=T level=ERROR msg=late logger=fptps role=server rank=2 for=1.5s key=3",
        '{"time":"T","level":"ERROR","msg":"late","logger":"fptps","role":"server","rank":2,"for":"1.5s","key":3}',
    ]
    early = _logs.line(False, logging.WARNING, 'early "word"', "fptps", ("server", None), {"reason": "a b"})
    assert without_time(early) == 'time=T level=WARN msg="early \\"word\\"" logger=fptps role=server reason="a b"'


def without_time(text):
    """A line with T in the place of its time."""
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)", "T", text)


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, logging.WARNING),
        ({"PS_VERBOSE": "1"}, logging.INFO),
        ({"PS_VERBOSE": "2"}, logging.DEBUG),
        ({"PS_VERBOSE": "2", "FPTPS_LOG": "error"}, logging.ERROR),
        ({"PS_VERBOSE": "0", "FPTPS_LOG": "debug"}, logging.DEBUG),
        ({"FPTPS_LOG": ""}, logging.WARNING),
    ],
)
def test_levels(settings, level):
    assert _logs.level_of(settings) == level


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("FPTPS_LOG", "loud", "debug, info, warning or error is expected"),
        ("FPTPS_LOG_FORMAT", "xml", "text or json is expected"),
        ("PS_VERBOSE", "3", "a whole number from 0 to 2 is expected"),
    ],
)
def test_unknown_values(monkeypatch, name, value, expected):
    monkeypatch.setenv(name, value)
    with pytest.raises(fptps.ConfigError, match=f"{name}={value}: {expected}"):
        fptps.KVWorker(num_workers=1)
    if name != "PS_VERBOSE":
        done = run("", **{name: value})
        assert done.returncode == 2
        assert f"{name}={value}: {expected}" in done.stderr


CONFIGURED = """
import logging, sys
logging.basicConfig(format="mine: %(message)s", stream=sys.stdout)
import fptps
logging.getLogger("fptps").warning("once")
logging.getLogger("fptps").info("not at all")
"""


def test_a_program_with_handlers_of_its_own_gets_python_s_records():
    done = subprocess.run([sys.executable, "-c", CONFIGURED], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("mine: once\n", "")


def test_importing_fptps_leaves_logging_alone():
    code = "import fptps, logging; assert not logging.getLogger().handlers; logging.getLogger('other').warning('raw')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "raw\n"
