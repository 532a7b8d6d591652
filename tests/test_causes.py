"""fptps.cluster._causes: the first cause in full and first, and what follows from it in one line."""

import re
import subprocess
import sys

import pytest

from fptps.cluster._causes import HOLD_S, MOST, Causes, LastWords, Loss
from fptps.cluster._process import Process

MISTAKE = [
    b"Traceback (most recent call last):",
    b'  File "train.py", line 4, in step',
    b'    raise ValueError("nan")',
    b"",
    b"ValueError: nan",
]
LOST = [
    b"Traceback (most recent call last):",
    b'  File "train.py", line 9, in <module>',
    b"fptps.errors.NodeLostError: worker 1 was lost: it left by ValueError: nan. The cluster cannot go on without it",
]
SERVER = [b"fptps server: worker 1 was lost: it left by ValueError: nan. The cluster cannot go on without it"]
RECORD = [b'{"time":"T","level":"ERROR","msg":"worker 1 was lost: it was silent for 1m0s","logger":"fptps"}']
WORKER_1 = Loss("worker 1", "it left by ValueError: nan. The cluster cannot go on without it")


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("written", "held", "loss", "error"),
    [
        ([b"epoch 1", b"epoch 2"], 0, None, ""),
        (MISTAKE, 0, None, "ValueError: nan"),
        (LOST, 3, WORKER_1, LOST[-1].decode()),
        ([b"epoch 1", *LOST], 3, WORKER_1, LOST[-1].decode()),
        (SERVER, 1, WORKER_1, ""),
        (RECORD, 0, Loss("worker 1", 'it was silent for 1m0s","logger":"fptps"}'), ""),
        ([*LOST, b"the program goes on"], 0, None, ""),
        ([*LOST, b"", *MISTAKE], 0, None, "ValueError: nan"),
        (
            [*MISTAKE, b"", b"During handling of the above exception, another exception occurred:", b"", *LOST],
            3,
            WORKER_1,
            None,
        ),
        (LOST[:2], 2, None, ""),  # it may become anything
        ([b"NodeLostError: something else"], 0, None, ""),
        ([b"\xff\xfe"], 0, None, ""),
    ],
)
def test_last_words(written, held, loss, error, together):
    words = LastWords()
    passed = words.feed(written, 1.0) if together else [out for line in written for out in words.feed([line], 1.0)]
    assert passed == written[: len(written) - held]
    assert words.loss == loss
    assert error is None or words.error == error
    assert words.expire(1.0 + HOLD_S - 0.1) == []
    assert words.expire(1.0 + HOLD_S) == written[len(written) - held :]
    assert words.expire(100.0) == words.release() == []


def test_a_program_that_never_ends_a_traceback_fills_no_memory():
    words = LastWords()
    lines = [LOST[0], *[b"  deeper"] * (3 * MOST)]
    passed = [out for line in lines for out in words.feed([line], 0.0)]
    assert len(passed) >= 2 * MOST
    assert passed + words.release() == lines


def said(*lines):
    words = LastWords()
    words.feed(list(lines), 0.0)
    return words


def ended(causes, rank, words):
    return causes.ended(Process("worker", rank, 1), f"fptps: worker {rank} failed", words)


def test_consequences_wait_for_the_cause():
    causes = Causes()
    assert ended(causes, 0, said(*LOST)) == []
    assert ended(causes, 2, said(*SERVER)) == []
    assert ended(causes, 1, said(*MISTAKE)) == [
        "fptps: worker 1 failed: ValueError: nan",
        "fptps: worker 0 failed, as worker 1 was lost",
        "fptps: worker 2 failed, as worker 1 was lost",
    ]
    assert ended(causes, 3, said(*LOST)) == ["fptps: worker 3 failed, as worker 1 was lost"]
    assert ended(causes, 4, said(b"killed")) == ["fptps: worker 4 failed"]
    assert causes.rest() == []


def test_a_cause_that_did_not_fail_by_itself():
    """It stands still, or belongs to another machine."""
    causes = Causes()
    assert ended(causes, 0, said(*LOST)) == []
    assert ended(causes, 2, said(*LOST)) == []
    assert causes.rest() == [
        "fptps: worker 1 was lost: it left by ValueError: nan",
        "fptps: worker 0 failed, as worker 1 was lost",
        "fptps: worker 2 failed, as worker 1 was lost",
    ]
    assert causes.rest() == []


PROGRAM = """
import os, sys
import numpy as np
import fptps
with fptps.KVWorker() as kv:
    kv.init("w", np.zeros(4, np.float32))
    if kv.rank == 1:
        {end}
    kv.push_pull("w", np.ones(4, np.float32)).result()
"""


def run(end, *options):
    command = [sys.executable, "-m", "fptps", "run", "-n", "3", "-s", "1", *options]
    program = [sys.executable, "-c", PROGRAM.format(end=end)]
    return subprocess.run([*command, *program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("end", "code", "how"),
    [
        ("raise ValueError('nan in batch 3')", 1, "ended with exit code 1: ValueError: nan in batch 3"),
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
        ("os._exit(3)", 3, "ended with exit code 3"),
    ],
)
def test_a_run_that_fails(end, code, how):
    done = run(end)
    assert done.returncode == code, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("fptps: ")]
    first, *others = [re.sub(r" \(pid \d+\)", "", line) for line in told]
    assert first == f"fptps: worker 1 {how}"
    consequence = "fptps: {} ended with exit code 1, as worker 1 was lost"
    assert sorted(others) == [consequence.format(name) for name in ("scheduler", "server 0", "worker 0", "worker 2")]
    assert done.stderr.count("Traceback") == ("raise" in end)
    assert "NodeLostError" not in done.stderr


def test_a_program_that_handles_the_loss():
    """It has written a traceback, and goes on: nothing of it is left out."""
    say = "(traceback.print_exception(*e), print('saved', file=sys.stderr))"
    handle = f"import traceback; sys.excepthook = lambda *e: {say}"
    done = run(f"os._exit(3)\n    else:\n        {handle}")
    assert done.returncode == 3, done.stderr
    assert len(re.findall(r"\[worker [02]\] fptps.errors.NodeLostError: worker 1 was lost", done.stderr)) == 2
    assert len(re.findall(r"\[worker [02]\] saved\n", done.stderr)) == 2
