"""benchmarks: the arithmetic of comparing by tables; the runners for a moment each. Nothing here looks at a time."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import compare, report, scenarios, shaped, stillness, summary
from benchmarks.peers import common, iperf3, loop, mxnet_env, native
from test_benchmarks_training import TRAINED

ROOT = Path(__file__).parents[1]

RESULT_KEYS = {"goodput_mb_s_per_worker", "cpu_s_per_gb", "p50_us", "p99_us", "iterations"}
COMPILED = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=100)


def result(*command: str) -> dict[str, Any]:
    """The content of a runner's last line."""
    done = run(*command)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert set(found) >= RESULT_KEYS
    return found


def sample(goodput: float, p50: float | None = None) -> dict[str, Any]:
    return {"goodput_mb_s_per_worker": goodput, "p50_us": p50}


# Comparing


@pytest.mark.parametrize(
    ("systems", "rounds", "order"),
    [
        (["a"], 2, "a a"),
        (["a", "b"], 1, "a b"),
        (["a", "b"], 3, "a b b a a b"),
        (["a", "b", "c"], 4, "a b c b c a c a b a b c"),
    ],
)
def test_each_system_runs_once_a_round_and_leads_in_turn(systems, rounds, order):
    runs = summary.run_order(systems, rounds)
    assert [run.system for run in runs] == order.split()
    assert [run.round for run in runs] == [n for n in range(rounds) for _ in systems]


@pytest.mark.parametrize(
    ("values", "median"),
    [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0], 2.5), ([None, 7.0, None], 7.0), ([None], None), ([], None)],
)
def test_median_of_those_that_have_the_figure(values, median):
    assert summary.median([{"p50_us": value} for value in values], "p50_us") == median
    assert summary.median([{} for _ in values], "p50_us") is None


@pytest.mark.parametrize(
    ("above", "below", "ratio"),
    [(6.0, 2.0, 3.0), (0.0, 2.0, 0.0), (6.0, 0.0, None), (None, 2.0, None), (6, None, None)],
)
def test_ratio(above, below, ratio):
    assert summary.ratio(above, below) == ratio


def test_rows_have_medians_and_ratios_in_which_more_is_better_for_fptps():
    samples = {
        "fptps": [sample(900, 50), sample(300, 10), sample(600, 20)],
        "slow": [sample(200, 90), sample(100, 70), sample(300, 80)],
        "stream": [sample(1200)],
        "absent": [],
    }
    fptps, slow, stream = summary.rows("1x1", samples, "fptps")
    assert (fptps.system, fptps.samples, fptps.goodput_least, fptps.goodput_most) == ("fptps", 3, 300, 900)
    assert (fptps.goodput_ratio, fptps.p50_ratio) == (1, 1)
    assert (slow.medians["goodput_mb_s_per_worker"], slow.medians["p50_us"]) == (200, 80)
    assert (slow.goodput_ratio, slow.p50_ratio) == (3, 4)
    assert (stream.goodput_ratio, stream.p50_ratio) == (0.5, None)
    assert summary.cells(slow) == ["1x1", "slow", "200", "100", "300", "-", "80.0", "-", "3.00", "4.00"]
    assert len(summary.cells(stream)) == len(summary.HEADERS)


def test_rows_without_the_reference_have_no_ratios():
    (row,) = summary.rows("1x1", {"fptps": [], "peer": [sample(5, 5)]}, "fptps")
    assert (row.goodput_ratio, row.p50_ratio) == (None, None)


def test_scenarios_name_known_peers():
    names = [scenario.name for scenario in scenarios.SCENARIOS]
    assert len(set(names)) == len(names)
    for scenario in scenarios.SCENARIOS:
        assert set(scenario.peers) <= set(scenarios.PEERS)
    for runner, *_ in scenarios.PEERS.values():
        assert importlib.util.find_spec(f"benchmarks.peers.{runner}")


@pytest.mark.parametrize(
    ("code", "output", "errors", "why"),
    [
        (1, "half a table", "one\nno such thing", "exit code 1: no such thing"),
        (3, "", "", "exit code 3: no output"),
        (0, "table\nall well", "", "its last line is no JSON"),
        (0, '{"p50_us": 1}', "", "its last line is no JSON"),
        (0, '{"goodput_mb_s_per_worker": null}', "", "its last line is no JSON"),
    ],
)
def test_a_run_without_figures_says_why(code, output, errors, why):
    with pytest.raises(compare.RunFailed, match=why):
        compare.figures(code, output, errors)


STAND_IN = """
import json, sys
print("a table")
print(json.dumps({"goodput_mb_s_per_worker": len(sys.argv), "p50_us": 2, "iterations": 1}))
"""


@COMPILED
def test_compare_writes_every_sample(tmp_path):
    stand_in, output = tmp_path / "fptps.py", tmp_path / "out.json"
    stand_in.write_text(STAND_IN)
    command = ["benchmarks.compare", "--scenario", "1x1 4 KB", "--peer", "ring", "--rounds", "2", "--seconds", "0.05"]
    program = shlex.join([sys.executable, str(stand_in)])
    done = run(*command, "--fptps", program, "--output", str(output))
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    assert [one["system"] for one in found["samples"]] == ["fptps", "fptps tcp", "ring", "fptps tcp", "ring", "fptps"]
    assert found["samples"][0]["figures"]["goodput_mb_s_per_worker"] > 10  # it got the scenario's options
    assert set(found["commands"]["1x1 4 KB"]) == {"fptps", "fptps tcp", "ring"}
    assert found["machine"]["cores"] > 0
    assert [row["system"] for row in found["medians"]] == ["fptps", "fptps tcp", "ring"]
    assert "1x1 4 KB" in done.stdout


def test_compare_goes_on_without_a_failed_peer_and_fails_with_fptps(tmp_path):
    output = tmp_path / "out.json"
    command = ["benchmarks.compare", "--scenario", "1x1 4 KB", "--peer", "gloo", "--rounds", "3"]
    done = run(*command, "--fptps", f"{sys.executable} -c 'exit(\"broken\")'", "--output", str(output))
    assert done.returncode != 0
    failures = json.loads(output.read_text())["failures"]["1x1 4 KB"]
    assert failures == dict.fromkeys(["fptps", "fptps tcp"], ["exit code 1: broken"] * compare.FAILURES)
    assert "fptps failed 2 times, the last time: exit code 1: broken" in done.stdout


# What the runners share


@pytest.mark.parametrize(("share", "value"), [(0.5, 3), (0.99, 5), (0.2, 1), (0.21, 2), (1, 5), (0, 1)])
def test_percentile(share, value):
    assert common.percentile([5, 3, 1, 4, 2], share) == value


def test_parts_become_one_result():
    options = common.Options(workers=2, servers=1, size=1000, tensors=3, seconds=1)
    parts = [common.Part(10, 2.0, 0.5, [1.0, 2.0]), common.Part(10, 1.0, 0.7, [3.0, 9.0])]
    merged = common.merged(options, parts)
    assert merged.goodput_mb_s_per_worker == pytest.approx(2 * 1000 * 3 * 10 / 1e6 / 2.0)  # the slowest worker's time
    assert merged.cpu_s_per_gb == pytest.approx(1.2 / (2 * 60000 / 1e9))
    assert (merged.p50_us, merged.p99_us, merged.iterations) == (2.0, 9.0, 10)


def test_parts_that_disagree_are_no_result():
    options = common.Options(2, 1, 1000, 3, 1)
    with pytest.raises(common.PeerError, match="do not agree"):
        common.merged(options, [common.Part(10, 1, 1, [1]), common.Part(11, 1, 1, [1])])


@pytest.mark.parametrize(("each", "expected"), [(0.5, 4), (5.0, 1), (0.01, 200), (0.0011, 1818)])
def test_iterations_fill_the_time(each, expected):
    assert loop.iterations_for(2.0, lambda count: count * each) == expected


class Broken:
    """A peer that loses one tensor's sum."""

    def start(self, tensor: int) -> None: ...

    def wait(self, tensor: int) -> None: ...

    def fill(self, value: float) -> None: ...

    def elements(self, tensor: int) -> tuple[float, float]:
        return (6.0, 6.0 if tensor < 2 else 5.0)

    def agree(self, value: float) -> float:
        return value


def test_a_wrong_sum_is_not_measured():
    with pytest.raises(common.PeerError, match="tensor 2 is"):
        loop.measure(Broken(), 0, common.Options(3, 1, 4, 3, 1.0))


@pytest.mark.parametrize("both_ways", [False, True])
def test_iperf3_counts_received_bytes(both_ways):
    end = {
        "sum_sent": {"seconds": 2.0, "bytes": 9_000_000_000},
        "sum_received": {"seconds": 2.0, "bytes": 6_000_000_000},
        "cpu_utilization_percent": {"host_total": 60.0, "remote_total": 90.0},
    }
    if both_ways:
        end["sum_received_bidir_reverse"] = {"seconds": 2.0, "bytes": 4_000_000_000}
    found = iperf3.result_of({"end": end})
    assert found.goodput_mb_s_per_worker == (5000 if both_ways else 3000)
    assert found.cpu_s_per_gb == pytest.approx(0.3 if both_ways else 0.5)
    assert math.isclose(found.cpu_s_per_gb * found.goodput_mb_s_per_worker * 2 / 1e3, 3.0)


def test_an_error_of_iperf3_is_raised():
    with pytest.raises(common.PeerError, match="no route"):
        iperf3.result_of({"error": "no route"})


def test_python_for_mxnet(tmp_path):
    other = tmp_path / "python3.9"
    other.write_text("#!/bin/sh\nexit 127\n")  # as pyenv's for a version that is not chosen
    other.chmod(0o755)
    assert not mxnet_env.fits(str(other))
    other.write_text("#!/bin/sh\necho 3.9\n")
    assert mxnet_env.fits(str(other))
    other.write_text("#!/bin/sh\necho 3.12\n")
    assert not mxnet_env.fits(str(other))
    assert not mxnet_env.fits(str(tmp_path / "absent"))


# The runners


@COMPILED
@pytest.mark.parametrize("way", [[], ["--one-way"]])
@pytest.mark.parametrize(("size", "tensors"), [(1, 1), (65537, 3), (5_000_003, 2)])
@pytest.mark.parametrize("program", ["epoll", "ring"])
def test_the_machines_limit_moves_the_right_bytes(program, size, tensors, way):
    command = ["benchmarks.peers.native", program, "--check", "--seconds", "0.01", *way]
    found = result(*command, "--size", str(size), "--tensors", str(tensors))
    assert found["checked"]
    assert found["iterations"] >= 1


@COMPILED
def test_the_check_finds_a_wrong_byte(tmp_path):
    """With an epoll.c that changes one byte of the data that it receives."""
    peers = ROOT / "benchmarks" / "peers"
    text = (peers / "epoll.c").read_text()
    spoilt = text.replace("return done == 0 ? ENDED", "if (done > 9) ((char *)bytes)[9] ^= 1; return done == 0 ? ENDED")
    assert spoilt != text
    (tmp_path / "epoll.c").write_text(spoilt)
    sources = [str(tmp_path / "epoll.c"), str(peers / "traffic.c")]
    subprocess.run(["cc", f"-I{peers}", "-o", str(tmp_path / "epoll"), *sources], check=True, timeout=100)
    command = [str(tmp_path / "epoll"), "--check", "--one-way", "--seconds", "0.01", "--size", "5000", "--tensors", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "came back wrong" in done.stderr


@COMPILED
@pytest.mark.parametrize("program", ["epoll", "ring"])
def test_several_pairs_at_once(program):
    command = ["benchmarks.peers.native", program, "--workers", "3", "--servers", "3", "--check", "--seconds", "0.01"]
    found = result(*command, "--size", "5000", "--tensors", "2")
    assert found["checked"]
    assert found["iterations"] >= 1


def test_pairs_have_the_mean_of_their_figures():
    results = [{"p50_us": 1.0, "checked": True}, {"p50_us": 4.0, "checked": False}]
    assert native.together(results) == {"p50_us": 2.5, "checked": False}


def test_the_machines_limit_is_of_pairs():
    done = run("benchmarks.peers.native", "ring", "--workers", "2")
    assert done.returncode == 2
    assert "--servers the number of --workers" in done.stderr


@pytest.mark.demo
def test_gloo():
    pytest.importorskip("torch")
    found = result("benchmarks.peers.gloo", "--workers", "2", "--size", "40000", "--tensors", "3", "--seconds", "0.1")
    assert found["iterations"] >= 1
    assert 0 < found["p50_us"] <= found["p99_us"]
    assert found["goodput_mb_s_per_worker"] > 0
    assert found["cpu_s_per_gb"] > 0


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["gloo", "--workers", "1"], "--workers 2 or more"),
        (["mpi", "--workers", "1"], "--workers 2 or more"),
        (["mxnet", "--python", "/nowhere/python"], "make peers"),
        (["iperf3", "--workers", "2"], "--workers 1 --servers 1"),
        (["gloo", "--size", "5"], "not a multiple of 4"),
    ],
)
def test_refused_measurements_name_the_remedy(command, sentence):
    done = run(f"benchmarks.peers.{command[0]}", *command[1:])
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed: apt-get install iperf3")
def test_iperf3_between_two_workers():
    command = [sys.executable, "-m", "benchmarks.peers.iperf3", "--between", "127.0.0.1", "--bidir", "--seconds", "1"]
    workers = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, "DMLC_WORKER_ID": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    measured, _ = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert json.loads(measured)["goodput_mb_s_per_worker"] > 0


def test_iperf3_between_workers_needs_a_cluster(monkeypatch):
    monkeypatch.delenv("DMLC_WORKER_ID", raising=False)
    monkeypatch.setattr(iperf3, "need_iperf3", lambda: None)
    with pytest.raises(common.PeerError, match="DMLC_WORKER_ID"):
        iperf3.run_between(common.Options(1, 1, 4, 1, 1.0), False, "127.0.0.1")


def test_peers_that_are_not_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for runner, package in [("mpi", "openmpi-bin"), ("iperf3", "iperf3")]:
        done = run(f"benchmarks.peers.{runner}", "--workers", "2" if runner == "mpi" else "1")
        assert done.returncode == 1
        assert f"apt-get install {package}" in done.stderr


# Stillness


def test_gaps_are_where_the_clock_jumps(monkeypatch):
    times = iter([0.0, 1e-5, 0.5, 0.50001, 2.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: None)
    assert stillness.gaps(0, 2.0) == pytest.approx([0.49999, 1.99999])


@pytest.mark.parametrize(
    ("found", "share", "longest"),
    [([], 0.99, 0.0), ([0.01], 0.99, 0.0), ([0.1], 0.99, 0.09), ([0.1, 0.1], 0.98, 0.09), ([0.05, 0.002], 0.99, 0.04)],
)
def test_expected_wait_at_a_random_moment(found, share, longest):
    """Of a second."""
    assert stillness.waits(found, 1.0, share) == pytest.approx(longest, abs=1e-9)


def test_stillness_of_this_machine():
    found = stillness.measure()
    assert 0 <= found["still_share"] <= 1
    assert found["p99_ms"] <= found["p999_ms"] <= found["longest_ms"]


# The report


def compared(**goodputs: float) -> dict[str, Any]:
    """A file of compare.py, for the scenario 1x1."""
    rows = [
        {
            "scenario": "1x1",
            "system": system.replace("_", " "),
            "medians": {**sample(goodput), "cpu_s_per_gb": 0.5, "p99_us": None},
        }
        for system, goodput in goodputs.items()
    ]
    return {
        "date": "2026-01-02",
        "commit": "abc",
        "machine": {"cores": 2},
        "rounds": 5,
        "medians": rows,
        "failures": {"1x1": {"mxnet": ["exit code 1: no"]}},
    }


def shaped_run(run: str, **figures: Any) -> dict[str, Any]:
    return {"run": run, "figures": figures, "link": [[0, 0], [0.1, 5_000_000], [0.2, 16_000_000]]}


SHAPED = {
    "date": "2026-01-03",
    "commit": "def",
    "stillness": [{"still_share": 0.03, "p99_ms": 1.5, "p999_ms": 7.0, "longest_ms": 11.0}],
    "samples": [
        shaped_run("iperf3", goodput_mb_s_per_worker=239.1, cpu_s_per_gb=0.5),
        *(shaped_run("push_pull 2x2", goodput_mb_s_per_worker=g, cpu_s_per_gb=2.0) for g in (200.0, 239.1, 230.0)),
        shaped_run("push_pull 8x8", goodput_mb_s_per_worker=119.55, cpu_s_per_gb=3.0),
        *(
            shaped_run(
                "preempt 4x1",
                alone={"p50_us": 500, "p99_us": 900},
                with_bulk={"p50_us": 1500, "p99_us": p99},
                link_share=0.981,
            )
            for p99 in (9000, 2000, 1000)
        ),
        shaped_run("push_pull 8x8, rate given", goodput_mb_s_per_worker=179.325, cpu_s_per_gb=1.0),
        shaped_run("trainer vgg16 2x2 packet", iteration_ms=210.0, bound_ms=200.0, compute_ms=100.0, ratio=1.05),
        shaped_run("trainer vgg16 2x2 packet, rate given", iteration_ms=200.0, bound_ms=200.0),
    ],
}


UNEVEN = {
    "date": "2026-01-04",
    "commit": "ghi",
    "samples": [
        {
            "case": "2x2, a slow server",
            "phases": [
                {"bound_ms": 100.0, "iterations_ms": [300.0, 104.0, 104.0, 104.0, 104.0], "plan_changes": [0]},
                {"bound_ms": 200.0, "iterations_ms": [300.0, 304.0, 300.0, 302.0, 300.0], "plan_changes": []},
            ],
        }
    ],
}


def test_links_are_measured_as_a_user_starts_a_cluster():
    """No setting goes to the nodes but where the run says so in its name."""
    for run in shaped.RUNS:
        assert run.rate_given == run.name.endswith(", rate given")
        assert ("--mode" in run.arguments) == run.name.endswith(("message", "partitioned", "fifo"))
        assert "--van" not in run.arguments
    given = {run.name.removesuffix(", rate given") for run in shaped.RUNS if run.rate_given}
    assert given <= {run.name for run in shaped.RUNS if not run.rate_given}


def cells(page: str, *first: str) -> list[str]:
    """The row of a table that begins with these cells: the others."""
    tables = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    (row,) = [row for row in tables if row[: len(first)] == list(first)]
    return row[len(first) :]


def test_report_has_ratios_and_says_what_is_missing():
    page = report.page(compared(fptps=5000, fptps_tcp=3000, epoll=4000), SHAPED, UNEVEN, TRAINED)
    assert "@" not in page
    assert "measured 2026-01-02 (beside its peers, commit abc) and 2026-01-03 (on links, commit def, rounds: 1)" in page
    assert cells(page, "1x1, TCP, MB/s, against epoll.c") == ["3000", "4000", "0.75", ">= 0.95", "1.00"]
    page = report.page(compared(fptps=5000, fptps_tcp=3000, epoll=4000, ring=8000, mxnet=2000), SHAPED, UNEVEN, TRAINED)
    assert cells(page, "1x1, TCP, MB/s, against MXNet") == ["3000", "2000", "1.50", ">= 3.5", "2.00"]
    assert cells(page, "1x1, shared memory, MB/s, against MXNet") == ["5000", "2000", "2.50", ">= 8", "4.00"]
    assert cells(page, "4x0, TCP, MB/s, against Gloo")[:3] == ["-", "-", "-"]
    assert cells(page, "1x1", "epoll")[0] == "4000"
    assert cells(page, "2x2", "96.2%")[0] == "83.6% to 100.0%"
    assert cells(page, "8x8") == ["50.0%", "50.0% to 50.0%", ">= 98%", "3", "1.50"]
    assert cells(page, "8x8, rate given") == ["75.0%", "75.0% to 75.0%", ">= 98%", "1", "0.50"]
    assert cells(page, "iperf3, 2 nodes") == ["100.0%", "100.0% to 100.0%", "-", "0.5", "0.25"]
    assert cells(page, "before the runs") == ["3.0%", "1.50", "7.00", "11.00"]
    assert cells(page, "4x1") == ["0.50", "0.90", "1.50", "2.00", "98.1%"]
    assert cells(page, "2x2, 1gbit", "vgg16", "100", "200") == ["466", "210", "200", "1.05", "<= 1.05", "1.05"]
    assert cells(page, "2x2, a slow server") == ["100", "300", "104", "1.04", "1", "0"]
    assert cells(page, "... change 1") == ["200", "300", "301", "1.50", "-", "-"]
    assert cells(page, "4x4, 1gbit", "vgg16", "1.10") == ["2.00", "-", "1.50", "10", "30", "25%"]
    assert "needs +1.0% processor time" in page
    assert "mxnet failed 1 times, the last time: exit code 1: no" in page


def test_report_draws(tmp_path):
    pytest.importorskip("matplotlib", reason="the plots need matplotlib: make bench installs it")
    loopback, links, changes, trained = (
        tmp_path / f"{name}.json" for name in ("compared", "shaped", "uneven", "training")
    )
    changes.write_text(json.dumps(UNEVEN))
    trained.write_text(json.dumps(TRAINED))
    loopback.write_text(json.dumps(compared(fptps=5000, fptps_tcp=3000, epoll=4000)))
    links.write_text(json.dumps(SHAPED))
    done = run("benchmarks.report", *map(str, (loopback, links, changes, trained)), "--docs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "performance.md").read_text().startswith("# Performance")
    drawn = {path.name for path in (tmp_path / "performance").iterdir()}
    assert drawn == {"goodput.png", "latency.png", "links.png", "trainer.png", "trainings.png"}
