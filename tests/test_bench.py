"""`fptps bench`: its parts, and each command on whole clusters. None of it depends on how fast anything is."""

import functools
import json
import os
import re
import subprocess
import sys
import time

import click
import numpy as np
import pytest
from click.testing import CliRunner

from fptps._bench import check
from fptps._bench.bound import arrivals, iteration_s, model_rate, payload_rate
from fptps._bench.command import bench as bench_command
from fptps._bench.measure import QUANTILES, percentiles_us, quantiles
from fptps._bench.processes import node_name
from fptps._bench.profile import Layer, load
from fptps._bench.push_pull import Loop, Options
from fptps._bench.report import table
from fptps._bench.units import parse_rate, parse_size

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
FPTPS = [sys.executable, "-m", "fptps"]

PROFILE = {
    "name": "tiny",
    "layers": [
        {"tensors": [{"elements": 1000}, {"elements": 3}], "fp_ms": 1, "bp_ms": 2.0},
        {"tensors": [{"elements": 5000}], "fp_ms": 0.5, "bp_ms": 1},
    ],
}
PUSH_PULL = {
    "bench", "workers", "servers", "size", "tensors", "iterations", "van", "goodput_mb_s_per_worker", "p50_us",
    "p99_us", "cpu_s_per_gb", "cpu_of", "peak_rss_mb",
}  # fmt: skip
PREEMPT = {
    "bench", "workers", "servers", "size", "bulk", "samples", "alone", "with_bulk", "goodput_mb_s_per_worker",
    "link_bit_s", "link_share",
}  # fmt: skip
TRAINER = {
    "bench", "workers", "servers", "profile", "scale", "mode", "link_bit_s", "iterations", "model_mb", "iteration_ms",
    "bound_ms", "ratio", "plan_changes", "compute_ms",
}  # fmt: skip


def bench(*arguments, **environment):
    """Runs `fptps bench` to its end."""
    command = [*FPTPS, "bench", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**ENVIRONMENT, **environment}, timeout=100, check=False
    )


def figures(done):
    """The JSON object in the last line of the output, below the table."""
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert any(re.match(r"figure +value$", line) for line in lines)
    return json.loads(last)


@pytest.fixture
def profile(tmp_path):
    """The file of a small model's profile."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(PROFILE))
    return path


# Units


@pytest.mark.parametrize(
    ("text", "size"),
    [("4MiB", 4 << 20), ("16KiB", 16384), ("64MB", 64_000_000), ("64 kB", 64_000), ("4", 4), ("1.5kib", 1536),
     ("1GiB", 1 << 30), ("1GB", 10**9), ("8B", 8)],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "3", "6", "-4", "4 miles", "MiB", "1e3", "0.33kB", "inf", "4MiB4", "٤"])
def test_invalid_sizes(text):
    with pytest.raises(ValueError, match="expected"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "rate"), [("1gbit", 1e9), ("100mbit", 1e8), ("512kbit", 512e3), ("2.5Gbit", 2.5e9), ("10 gbit", 1e10)]
)
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0gbit", "1", "1gb", "gbit", "-1gbit", "1gbit/h", "nan"])
def test_invalid_rates(text):
    with pytest.raises(ValueError, match="expected"):
        parse_rate(text)


# Figures


@pytest.mark.parametrize(
    ("seconds", "p50", "p99"),
    [([1e-6], 1, 1), ([3e-6, 1e-6, 2e-6], 2, 3), (np.arange(101) * 1e-6, 50, 99), ([[0, 0], [2e-3, 2e-3]], 1000, 2000)],
)
def test_percentiles(seconds, p50, p99):
    assert percentiles_us(seconds) == {"p50_us": p50, "p99_us": pytest.approx(p99, rel=0.02)}


@pytest.mark.parametrize("count", [1, 7, QUANTILES, 50_000])
def test_quantiles_stand_for_the_samples(count):
    samples = np.random.default_rng(count).permutation(np.linspace(3, 8, count))
    kept = quantiles(samples)
    assert len(kept) == QUANTILES
    assert (kept[0], kept[-1]) == (samples.min(), samples.max())
    assert np.percentile(kept, [50, 99]) == pytest.approx(np.percentile(samples, [50, 99]), rel=1e-3)


def test_table_shows_every_figure():
    shown = table({"a": 1, "b": {"c": 2.5, "d": None}, "e": ["x", "y"], "f": True, "g": 1234.5})
    assert [re.split(r"  +", line) for line in shown.splitlines()[2:]] == [
        ["a", "1"], ["b c", "2.5"], ["b d", "unknown"], ["e", "x, y"], ["f", "yes"], ["g", "1,234.5"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "command", "name"),
    [
        ({"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "3", "DMLC_SERVER_ID": "1"}, ["python", "x.py"], "worker 3"),
        ({"DMLC_ROLE": "scheduler"}, ["python", "-m", "fptps", "scheduler"], "scheduler"),
        ({}, ["python", "/usr/bin/fptps", "server"], "server"),
        ({}, ["python", "train.py"], "worker"),
    ],
)
def test_names_of_nodes(environment, command, name):
    assert node_name(environment, command) == name


# The checker


def pushed(rank, iteration, tensor, count=20):
    array = np.empty(count, np.float32)
    check.fill(array, rank, iteration, tensor)
    return array


@pytest.mark.parametrize("workers", [1, 2, 5, 100])
def test_the_right_sum_is_right(workers):
    for iteration, tensor in [(0, 0), (3, 2), (1000, 15)]:
        check.verify(sum(pushed(r, iteration, tensor) for r in range(workers)), workers, iteration, tensor)


@pytest.mark.parametrize(
    "contributions",
    [
        [(0, 5, 1), (1, 5, 1)],  # one is missing
        [(0, 5, 1), (1, 5, 1), (1, 5, 1)],  # one came twice, in the place of another
        [(0, 5, 1), (1, 5, 1), (2, 5, 1), (2, 5, 1)],
        [(0, 5, 1), (1, 5, 1), (2, 4, 1)],  # one is from the iteration before
        [(0, 4, 1), (1, 4, 1), (2, 4, 1)],
        [(0, 5, 0), (1, 5, 0), (2, 5, 0)],  # another tensor's
    ],
)
def test_a_wrong_sum_is_wrong_in_every_element(contributions):
    total = sum(pushed(*each) for each in contributions)
    with pytest.raises(check.WrongSum, match=r"iteration 5, tensor 1: 20 of 20 elements .* element 0 .* 3 workers"):
        check.verify(total, 3, 5, 1)


@pytest.mark.parametrize("element", [0, 7, 19])
def test_one_wrong_element(element):
    total = pushed(0, 2, 3) + pushed(1, 2, 3)
    total[element] += 1
    with pytest.raises(check.WrongSum, match=rf"1 of 20 elements are wrong; element {element} "):
        check.verify(total, 2, 2, 3)
    total[element] = np.nan
    with pytest.raises(check.WrongSum):
        check.verify(total, 2, 2, 3)


@pytest.mark.parametrize("claimed", [1, 2])
def test_the_loop_checks_every_sum(alone, monkeypatch, claimed):
    """A worker alone that takes itself for one of two lacks the other's part."""
    monkeypatch.setattr(alone._session, "workers", lambda epoch=-1: tuple(range(claimed)))
    loop = Loop(alone, Options(size=64, tensors=2, seconds=1.0, van="auto", check=True))
    if claimed == 1:
        assert len(loop.run(3).latencies) == 6
        return
    with pytest.raises(check.WrongSum, match="iteration 0, tensor 0"):
        loop.run(1)


# The bound. Layers of (bytes, forward, backward).


def layers(*rows):
    return [Layer((nbytes // 4,), forward, backward) for nbytes, forward, backward in rows]


@pytest.mark.parametrize(
    ("rows", "arrived", "end"),
    [
        # Backward 4, transfer 4, forward 2.
        ([(4, 2, 4)], [8], 10),
        # Gradients at 2 and 4. Big goes 2-4, small overtakes it 4-8, big 8-18. Forward 8-9 and 18-19.
        ([(4, 1, 2), (12, 1, 2)], [8, 18], 19),
        # The upper layer is through before the lower one's gradient: at 6. That is at 10, and travels 10-14.
        ([(4, 1, 8), (4, 1, 2)], [14, 6], 16),
        # Three: the last goes 1-2, the middle 2-3, the first 3-7; then the middle's rest 7-14, the last's 14-17.
        ([(4, 10, 1), (8, 1, 1), (4, 1, 1)], [7, 14, 17], 19),
        # All hidden: the first layer's transfer is waited for, the others' come while it computes.
        ([(4, 100, 1), (8, 1, 1), (4, 1, 1)], [7, 14, 17], 109),
        # No transfer at all for a layer without parameters.
        ([(0, 1, 1), (4, 1, 1)], [2, 5], 6),
    ],
)
def test_bound_by_hand(rows, arrived, end):
    assert arrivals(layers(*rows), 1.0) == pytest.approx(arrived)
    assert iteration_s(layers(*rows), 1.0) == pytest.approx(end)


def dumb_iteration(rows, rate, step):
    """The same in small steps of time: each gives the link to the lowest layer that has something to send."""
    left = [nbytes / rate for nbytes, _, _ in rows]
    ready = [sum(backward for _, _, backward in rows[index:]) for index in range(len(rows))]
    forward = [seconds for _, seconds, _ in rows]
    now, layer = 0.0, 0
    while layer < len(rows):
        can_run = now >= ready[0] and now >= ready[layer] and left[layer] <= 1e-9
        if can_run:
            forward[layer] -= step
            layer += forward[layer] <= 1e-9
        sending = [index for index in range(len(rows)) if now >= ready[index] and left[index] > 1e-9]
        if sending:
            left[sending[0]] -= step
        now += step
    return now


@pytest.mark.parametrize("seed", range(20))
def test_bound_against_small_steps(seed):
    random = np.random.default_rng(seed)
    # Sizes and times are multiples of 8 steps.
    rows = [(int(random.integers(1, 9)) * 4, *(random.integers(1, 9, 2) / 4)) for _ in range(random.integers(1, 7))]
    rate = float(random.choice([4, 16, 64]))
    step = 1 / 64
    assert iteration_s(layers(*rows), rate) == pytest.approx(dumb_iteration(rows, rate, step), abs=step * 3 * len(rows))


@pytest.mark.parametrize(
    ("workers", "servers", "rate"),
    [
        (1, 1, 1), (4, 4, 1), (4, 8, 1),  # each worker's own link
        (2, 1, 1), (3, 1, 1 / 1.2), (4, 1, 0.75), (4, 2, 1 / 1.2),  # workers sum too: docs/balance.md
        (2, 0, 1), (4, 0, 4 / 6), (1, 0, float("inf")),  # of pushes and pulls a half, 3/4 and nothing leave a worker
    ],
)  # fmt: skip
def test_rate_of_the_model(workers, servers, rate):
    assert model_rate(workers, servers, 1.0) == pytest.approx(rate)


def test_a_worker_that_runs_alone_has_no_bound():
    assert iteration_s(layers((400, 1, 2), (4, 3, 4)), model_rate(1, 0, 1.0)) == 10


def test_rate_of_the_payload():
    assert payload_rate(1e9) == pytest.approx(119.55e6, rel=1e-4)


# Profiles


def test_profile(profile):
    model = load(profile, 0.1)
    assert model.name == "tiny"
    assert model.layers == (Layer((100, 1), 0.001, 0.002), Layer((500,), 0.0005, 0.001))
    assert model.layers[0].nbytes == 404
    assert model.compute_s == pytest.approx(0.0045)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "'layers' is missing"),
        ('{"name": "x", "layers": []}', "no tensors"),
        ('{"layers": [{"tensors": [{"elements": 1}], "fp_ms": 1, "bp_ms": 1}]}', "'name' is missing"),
        ('{"name": "x", "layers": [{"tensors": [{"elements": 0}], "fp_ms": 1, "bp_ms": 1}]}', "layer 1: .* 0 elements"),
        ('{"name": "x", "layers": [{"tensors": [{"elements": true}], "fp_ms": 1, "bp_ms": 1}]}', "'elements'"),
        ('{"name": "x", "layers": [{"tensors": [{"elements": 1}], "bp_ms": 1}]}', "layer 1: 'fp_ms' is missing"),
        ('{"name": "x", "layers": [{"tensors": [{"elements": 1}], "fp_ms": 1, "bp_ms": -1}]}', "'bp_ms' is -1"),
        ('{"name": "x", "layers": [{"tensors": [{"elements": 1}], "fp_ms": NaN, "bp_ms": 1}]}', "'fp_ms' is nan"),
    ],
)
def test_invalid_profile(tmp_path, content, message):
    path = tmp_path / "wrong.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load(path, 1.0)


# The commands


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (2, 0)])
def test_push_pull(workers, servers):
    arguments = ["--size", "64KiB", "--tensors", 3, "--seconds", 0.1, "--van", "tcp", "--check", "--json"]
    done = bench("push_pull", "-n", workers, "-s", servers, *arguments)
    found = figures(done)
    assert set(found) == PUSH_PULL | {"checked"}
    assert (found["workers"], found["servers"], found["size"], found["tensors"]) == (workers, servers, 65536, 3)
    assert found["van"] == "tcp"
    assert found["iterations"] >= 1
    assert found["goodput_mb_s_per_worker"] > 0
    assert 0 < found["p50_us"] <= found["p99_us"]
    assert found["peak_rss_mb"] > 1
    assert len(found["cpu_of"]) == 1 + servers + workers
    assert set(found["cpu_of"]) == {"scheduler", *(f"server {r}" for r in range(servers)), "worker 0", "worker 1"}
    assert "push_pull: 100%" in done.stderr


def test_push_pull_in_the_order_of_ranks():
    arguments = ["-n", 2, "-s", 1, "--size", "64KiB", "--seconds", 0.1, "--deterministic", "--check", "--json"]
    found = figures(bench("push_pull", *arguments))
    assert set(found) == PUSH_PULL | {"checked", "deterministic"}
    assert found["deterministic"] is True


@pytest.mark.parametrize("size", ["4KiB", "100KiB"])
def test_kv(size):
    done = bench("kv", "-n", 2, "-s", 2, "--size", size, "--tensors", 3, "--seconds", 0.1, "--json")
    found = figures(done)
    assert set(found) == PUSH_PULL | {"checked"}
    assert found["checked"] is True
    assert (found["bench"], found["workers"], found["servers"], found["tensors"]) == ("kv", 2, 2, 3)
    assert 0 < found["p50_us"] <= found["p99_us"]
    assert sorted(found["cpu_of"]) == ["scheduler", "server 0", "server 1", "worker 0", "worker 1"]
    assert "kv: 100%" in done.stderr


def test_kv_without_servers():
    done = bench("kv", "-n", 1, "-s", 0)
    assert done.returncode == 1
    assert "need servers" in done.stderr


def test_preempt():
    found = figures(bench("preempt", "-n", 2, "-s", 1, "--size", "4KiB", "--bulk", "256kB", "--json"))
    assert set(found) == PREEMPT
    assert found["samples"] >= 300
    assert (found["size"], found["bulk"]) == (4096, 256_000)
    for case in ("alone", "with_bulk"):
        assert 0 < found[case]["p50_us"] <= found[case]["p99_us"]
    assert found["goodput_mb_s_per_worker"] > 0
    assert (found["link_bit_s"], found["link_share"]) == (None, None)


def test_preempt_with_a_link():
    found = figures(bench("preempt", "--bulk", "8", "--json", FPTPS_LINK_RATE="1gbit"))
    assert found["link_bit_s"] == 1e9
    per_direction = found["goodput_mb_s_per_worker"] * 1e6 / 2
    assert found["link_share"] == pytest.approx(per_direction / payload_rate(1e9), abs=0.001)


def test_trainer(profile):
    done = bench("trainer", "--profile", profile, "--scale", 0.1, "--link", "100mbit", "--iterations", 2, "--json")
    found = figures(done)
    assert set(found) == TRAINER
    assert (found["profile"], found["scale"], found["mode"], found["iterations"]) == ("tiny", 0.1, "packet", 2)
    assert found["link_bit_s"] == 1e8
    assert found["compute_ms"] == 4.5
    assert found["plan_changes"] == []
    rate = model_rate(2, 1, payload_rate(1e8))
    assert found["bound_ms"] == pytest.approx(iteration_s(load(profile, 0.1).layers, rate) * 1e3, abs=1e-3)
    assert found["ratio"] == pytest.approx(found["iteration_ms"] / found["bound_ms"], abs=1e-3)


def spans_in(file):
    """The names and numbers that each rank has written to a timeline; ends come after begins, and in order."""
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    written = {}
    for rank in sorted({span["rank"] for span in spans}):
        own = [span for span in spans if span["rank"] == rank]
        times = [time for span in own for time in (span["begin"], span["end"])]
        assert times == sorted(times)
        written[rank] = [(span["name"], span["number"]) for span in own]
    return written


def test_timeline_of_the_trainer(profile, tmp_path):
    """Both workers append to one file; the environment names it where the command line does not."""
    file = tmp_path / "timeline"
    arguments = ["-n", 2, "-s", 0, "--profile", profile, "--iterations", 3]
    assert bench("trainer", *arguments, "--timeline", file).returncode == 0
    assert spans_in(file) == {rank: [("iteration", number) for number in range(5)] for rank in range(2)}
    begun = time.monotonic()
    assert bench("trainer", *arguments, TESTBED_TIMELINE=str(file)).returncode == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["begin"] > begun for line in lines] == [False] * 10 + [True] * 10


def test_timeline_of_urgent_tensors(tmp_path):
    file = tmp_path / "timeline"
    assert bench("preempt", "-n", 1, "--size", "4KiB", "--bulk", "64kB", "--timeline", file).returncode == 0
    counts = {"settling": 10, "alone": 300, "settling with bulk": 10, "with bulk": 300}
    assert spans_in(file) == {0: [(name, number) for name, count in counts.items() for number in range(count)]}


@pytest.mark.parametrize("mode", ["fifo", "partitioned", "message", "packet"])
def test_trainer_without_a_link(profile, mode):
    arguments = ["-n", 1, "-s", 1, "--profile", profile, "--mode", mode, "--iterations", 1, "--json"]
    found = figures(bench("trainer", *arguments))
    assert found["mode"] == mode
    assert found["model_mb"] == 0.024
    assert (found["bound_ms"], found["ratio"], found["link_bit_s"]) == (None, None, None)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ([], {}),
        (["--van", "tcp"], {"FPTPS_VAN": "tcp"}),
        (["--mode", "fifo"], {"FPTPS_SCHEDULE": "fifo"}),
        (["--link", "1gbit"], {}),
    ],
)
def test_nothing_is_set_that_was_not_asked_for(profile, monkeypatch, options, given):
    """The nodes start as a user's do."""
    from fptps._bench import start

    asked = []
    monkeypatch.setattr(start, "run", lambda part, workers, servers, settings: asked.append(settings) or {})
    command = ["push_pull"] if "--van" in options else ["trainer", "--profile", str(profile)]
    assert CliRunner().invoke(bench_command, [*command, *options]).exit_code == 0
    assert asked == [given]


def test_every_node_gets_the_settings(monkeypatch):
    """In a local cluster, whatever the environment of this process."""
    from fptps._bench import start

    monkeypatch.setenv("FPTPS_VAN", "shm")
    part = functools.partial(start.take_part, settings_of_this_worker)
    assert start.run(part, 2, 0, {"FPTPS_VAN": "tcp"}) == {"FPTPS_VAN": "tcp"}


def settings_of_this_worker(kv):
    return {"FPTPS_VAN": os.environ["FPTPS_VAN"]}


def test_without_json_there_is_only_the_table():
    done = bench("push_pull", "-n", 1, "-s", 0, "--size", 64, "--tensors", 1, "--seconds", 0.01)
    assert done.returncode == 0, done.stderr
    assert "{" not in done.stdout
    assert re.search(r"^p99_us +[\d.,]+$", done.stdout, re.MULTILINE)


def test_member_of_a_cluster():
    options = ["--size", "4KiB", "--tensors", "2", "--seconds", "0.1", "--check", "--json"]
    command = [*FPTPS, "run", "-n", "2", "-s", "1", "--", *FPTPS, "bench", "push_pull", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {line.partition("] ")[0] for line in lines} == {"[worker 0"}
    found = json.loads(lines[-1].partition("] ")[2])
    assert set(found) == PUSH_PULL | {"checked"}
    assert (found["workers"], found["servers"]) == (2, 1)
    assert sorted(found["cpu_of"]) == ["scheduler", "server 0", "worker 0", "worker 1"]


def test_member_of_another_cluster():
    done = bench("push_pull", "-n", 3, DMLC_PS_ROOT_URI="127.0.0.1", DMLC_NUM_WORKER="2")
    assert done.returncode == 1
    assert re.search(r"^Error: -n 3, .*DMLC_NUM_WORKER=2", done.stderr, re.MULTILINE)


def test_member_without_a_cluster():
    done = bench("push_pull", DMLC_ROLE="worker")
    assert done.returncode == 1
    assert "set DMLC_PS_ROOT_URI" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["push_pull", "--size", "0"], "'--size': '0' is 0 bytes"),
        (["push_pull", "--tensors", "0"], "'--tensors'"),
        (["push_pull", "--seconds", "0"], "'--seconds'"),
        (["push_pull", "--seconds", "nan"], "'--seconds'"),
        (["push_pull", "--seconds", "inf"], "'--seconds'"),
        (["push_pull", "--van", "mail"], "'--van'"),
        (["push_pull", "-n", "0"], "'-n'"),
        (["preempt", "--bulk", "much"], "'--bulk'"),
        (["preempt", "--link", "fast"], "'--link'"),
        (["trainer"], "'--profile'"),
        (["trainer", "--profile", "/nowhere.json"], "'/nowhere.json' does not exist"),
        (["trainer", "--profile", __file__], "cannot be read as JSON"),
        (["trainer", "--profile", "PROFILE", "--scale", "0"], "'--scale'"),
        (["trainer", "--profile", "PROFILE", "--link", "1"], "'--link'"),
        (["trainer", "--profile", "PROFILE", "--mode", "best"], "'--mode'"),
        (["trainer", "--profile", "PROFILE", "--iterations", "0"], "'--iterations'"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input(profile, arguments, message):
    given = [str(profile) if argument == "PROFILE" else argument for argument in arguments]
    with pytest.raises(click.UsageError) as error:
        bench_command.main(given, standalone_mode=False)
    assert message in error.value.format_message()


def test_bad_input_ends_the_program():
    done = bench("push_pull", "--size", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    *_, last = done.stderr.splitlines()
    assert "'--size': '0' is 0 bytes" in last


@pytest.mark.parametrize("command", [[], ["push_pull"], ["preempt"], ["trainer"]])
def test_help(command):
    done = CliRunner().invoke(bench_command, [*command, "--help"], prog_name="fptps bench")
    assert done.exit_code == 0
    assert "Usage: fptps bench" in done.output


def test_tensors_that_do_not_fit():
    done = bench("push_pull", "-n", 1, "-s", 0, "--size", "1000000GB", "--tensors", 1)
    assert done.returncode == 1
    assert re.search(r"^Error: the tensors do not fit in memory: ", done.stderr, re.MULTILINE)
