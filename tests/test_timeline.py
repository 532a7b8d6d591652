"""Timelines: what nodes record, their clocks, and the file."""

import collections
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from test_cli import ENVIRONMENT, FPTPS, fptps_command
from traces import PACKET, Scene, part

import fptps
from fptps._timeline import chrome
from fptps._timeline.clocks import align
from fptps._timeline.packets import CONTRIBUTION, SUM, ways
from fptps._timeline.part import Kind, decode
from fptps._timeline.steps import steps_of
from fptps._timeline.trace import merge

TENSORS, PACKETS, ROUNDS, WORKERS = 3, 5, 6, 2
TRAIN = f"""
import numpy as np
import fptps

with fptps.KVWorker() as kv:
    arrays = [np.full({PACKETS} * 4096, kv.rank + 1, np.float32) for _ in range({TENSORS})]
    for key, array in enumerate(arrays):
        kv.init(f"layer {{key}}", np.zeros_like(array))
    kv.set_tensor_count({TENSORS})
    for _ in range({ROUNDS}):
        tickets = [kv.push_pull(f"layer {{key}}", array, priority=-key) for key, array in enumerate(arrays)]
        assert all((ticket.result() == 3).all() for ticket in tickets)
"""


def recorded(path, sampling, code=TRAIN):
    """Runs a program with --timeline: the file's object, and its trace."""
    command = [*FPTPS, "run", "-n", str(WORKERS), "-s", "1", "--timeline", str(path), sys.executable, "-c", code]
    environment = {**ENVIRONMENT, "FPTPS_TRACE": sampling}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"fptps: the timeline of {WORKERS + 2} nodes is in {path}: `fptps timeline {path}`" in done.stderr
    return json.loads(path.read_text()), merge(chrome.read(path))


def check_format(events):
    """What the description of Chrome's format asks for, and Perfetto, which drops what does not fit."""
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    tracks, flows, open_ = collections.defaultdict(list), collections.defaultdict(list), {}
    for e in events:
        assert e["pid"] in processes
        if e["ph"] != "M":
            assert isinstance(e["ts"], float)
            assert e["ts"] >= 0
        if e["ph"] in "Xstf":
            assert (e["pid"], e["tid"]) in threads
        if e["ph"] == "X":
            assert e["dur"] >= 0
            tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        elif e["ph"] in "stf":
            flows[e["cat"], e["name"], e["id"]].append(e)
        elif e["ph"] == "b":
            assert open_.setdefault((e["cat"], e["id"], e["pid"]), e) is e, "two slices with one id at a time"
        elif e["ph"] == "e":
            assert open_.pop((e["cat"], e["id"], e["pid"]))["ts"] <= e["ts"]
        elif e["ph"] == "C":
            assert e["args"]["value"] >= 0
        else:
            assert e["ph"] in "Mi"
    assert not open_
    begins = {}
    for track, slices in tracks.items():
        slices.sort()
        for (_, end), (begin, _) in zip(slices, slices[1:]):
            assert end <= begin + 1e-3, "slices of a track overlap"
        begins[track] = {begin for begin, _ in slices}
    for points in flows.values():
        assert [p["ph"] for p in points] == ["s", *"t" * (len(points) - 2), "f"]
        assert all(p["ts"] in begins[p["pid"], p["tid"]] for p in points), "a flow that is bound to no slice"
        assert [p["ts"] for p in points] == sorted(p["ts"] for p in points)
    return flows


def test_every_packet_of_a_run(tmp_path):
    file, trace = recorded(tmp_path / "out.json", "1")
    names = {node.id: node.name for node in trace.nodes}
    assert [node.name for node in trace.nodes] == ["scheduler", "server 0", "worker 0", "worker 1"]
    assert sorted(trace.tensors.values()) == [f"layer {key}" for key in range(TENSORS)]
    seen = collections.Counter()
    for way in ways(trace):
        if way.round == 0:
            continue
        assert None not in (way.queued, way.written, way.read), way
        assert (way.summed is None) == (way.what == SUM)
        times = [way.queued, way.written, way.read, *([way.summed] if way.what == CONTRIBUTION else [])]
        assert times == sorted(times), way
        seen[way.what, names[way.sender], names[way.receiver]] += 1
        seen["complete"] += way.completed
    each = TENSORS * PACKETS * ROUNDS
    contributions = {(CONTRIBUTION, f"worker {r}", "server 0"): each for r in range(WORKERS)}
    assert seen == {
        "complete": each,
        **contributions,
        **{(SUM, "server 0", f"worker {r}"): each for r in range(WORKERS)},
    }

    flows = check_format(file["traceEvents"])
    assert collections.Counter(what for what, _, _ in flows)[CONTRIBUTION] >= each * WORKERS
    for worker in trace.workers:
        assert [step.number for step in steps_of(worker)] == list(range(2, ROUNDS + 1))
        calls = worker.of(Kind.CALLED)
        assert len(calls[calls["round"] > 0]) == TENSORS * ROUNDS
    steps = [e["name"] for e in file["traceEvents"] if e["ph"] == "X" and e["name"].startswith("step ")]
    assert collections.Counter(steps) == {f"step {n}": WORKERS for n in range(2, ROUNDS + 1)}
    operations = [e for e in file["traceEvents"] if e["ph"] == "b" and e["cat"] == "operation"]
    assert {e["name"] for e in operations} == {f"layer {key}" for key in range(TENSORS)}
    assert {e["args"]["priority"] for e in operations if e["name"] == "layer 2"} >= {-2}
    counters = {e["name"] for e in file["traceEvents"] if e["ph"] == "C"}
    assert "processors in use" in counters  # a run may end before links are sampled


def test_all_nodes_sample_the_same_packets(tmp_path):
    _, trace = recorded(tmp_path / "out.json", "1/4")
    found = [way for way in ways(trace) if way.round > 0]
    assert all(None not in (way.queued, way.written, way.read) for way in found)
    packets = {(way.tensor, way.round, way.packet) for way in found}
    assert 5 < len(packets) < TENSORS * PACKETS * ROUNDS / 2
    assert len(found) == 2 * WORKERS * len(packets)


def test_a_recording_of_a_worker(tmp_path):
    path = tmp_path / "mine.json"
    with fptps.KVWorker(num_workers=1) as kv:
        kv.init("w", np.zeros(9000, np.float32))
        with kv.timeline(path, sampling="1"):
            with pytest.raises(fptps.BusyError, match="this node is traced already"):
                kv.timeline(path)
            kv.push_pull("w", np.ones(9000, np.float32)).result()
        recording = kv.timeline(tmp_path / "second.json")
        recording.stop()
        with pytest.raises(ValueError, match="this node is not traced"):
            recording.stop()
        for sampling in ("0", "64", "all"):
            with pytest.raises(ValueError, match=f"sampling={sampling}: "):
                kv.timeline(path, sampling=sampling)
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            kv.timeline(tmp_path / "none" / "x.json")
    assert sorted(os.listdir(tmp_path)) == ["mine.json", "second.json"]
    check_format(json.loads(path.read_text())["traceEvents"])
    (worker,) = merge(chrome.read(path)).nodes
    assert worker.of(Kind.CALLED)["bytes"].tolist() == [36000]
    assert len(worker.of(Kind.DONE)) == 1
    assert not len(merge(chrome.read(tmp_path / "second.json")).nodes[0].of(Kind.CALLED))


SIGNALLED = """
import os, signal, sys
import numpy as np
import fptps

if len(sys.argv) > 1:
    signal.signal(signal.SIGUSR2, lambda number, frame: print("mine"))
with fptps.KVWorker(num_workers=1) as kv:
    kv.init(0, np.zeros(4))
    os.kill(os.getpid(), signal.SIGUSR2)
    kv.push_pull(0, np.ones(4)).result()
    os.kill(os.getpid(), signal.SIGUSR2)
"""


@pytest.mark.parametrize("own", [False, True])
def test_sigusr2(tmp_path, own):
    command = [sys.executable, "-c", SIGNALLED, *(["own"] if own else [])]
    environment = {**ENVIRONMENT, "FPTPS_TRACE_DIR": str(tmp_path / "parts")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    if own:
        assert done.stdout.split() == ["mine", "mine"]
        assert not (tmp_path / "parts").exists()
        return
    first, second = re.findall("^fptps: .*", done.stderr, re.MULTILINE)
    assert "is traced until the next SIGUSR2" in first
    (file,) = (tmp_path / "parts").iterdir()
    assert second.endswith(f"has written its part of the timeline: {file}")
    (worker,) = merge([decode(file.read_bytes(), str(file))]).nodes
    assert len(worker.of(Kind.CALLED)) == 1


def test_a_node_that_is_killed_has_no_part(tmp_path):
    code = (
        "import fptps, os, signal\n"
        "with fptps.KVWorker() as kv:\n"
        "    kv.barrier()\n"
        "    if kv.rank: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    kv.barrier()\n"
    )
    done = fptps_command("run", "-n", 2, "--timeline", tmp_path / "t.json", sys.executable, "-c", code)
    assert done.returncode == 128 + signal.SIGKILL
    assert re.search("the timeline of 2 nodes is in .*, 1 ended without writing theirs: ", done.stderr), done.stderr
    assert {node.name for node in merge(chrome.read(tmp_path / "t.json")).nodes} == {"scheduler", "worker 0"}


def test_a_run_whose_timeline_could_not_be_written_does_not_begin(tmp_path, monkeypatch):
    for file in (tmp_path, tmp_path / "none" / "t.json"):
        done = fptps_command("run", "--timeline", file, sys.executable, "-c", "print('ran')")
        assert (done.returncode, done.stdout) == (2, "")
    monkeypatch.setenv("FPTPS_TRACE", "on")
    with pytest.raises(fptps.ConfigError, match=r"FPTPS_TRACE=on: 0, 1 or a fraction such as 1/64 is expected"):
        fptps.KVWorker(num_workers=1)


def test_files_that_are_no_timelines(tmp_path):
    good = part("worker 0", [(5, Kind.CALLED, 0, 1, 0, 4, "")]).encode()
    files = {
        "x.fptrace": b"",
        "y.fptrace": good[:-1],
        "z.fptrace": good.replace(b"trace 1", b"trace 2"),
        "w.json": b'{"traceEvents": []}',
        "v.json": b"\xff",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        done = fptps_command("timeline", tmp_path / name)
        assert done.returncode == 1
        assert re.fullmatch(rf"Error: .*{name} is .*\n", done.stderr), done.stderr
    (tmp_path / "empty").mkdir()
    done = fptps_command("timeline", tmp_path / "empty")
    assert (done.returncode, "there is no part of a timeline in it" in done.stderr) == (1, True)


SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("exchanges", "times", "expected", "uncertainty"),
    [
        pytest.param([(100, 1000, 20)], [0, 100, 500], [1000, 1100, 1500], 20, id="one exchange"),
        pytest.param([(100, 1000, 20), (200, 5000, 90)], [150], [1150], 20, id="the fastest counts"),
        pytest.param(
            [(0, 0, 5), (20 * SECOND, 1000, 7)], [10 * SECOND], [10 * SECOND + 500], 7, id="a clock that drifts"
        ),
    ],
)
def test_clocks_of_hosts(exchanges, times, expected, uncertainty):
    clock = align([part("scheduler"), part("worker 0", host="b", clock=exchanges)])["b"]
    assert clock.read(np.array(times)).tolist() == expected
    assert clock.uncertainty == uncertainty


def test_nodes_of_a_host_share_its_clock():
    parts = [
        part("scheduler"),
        part("worker 0", host="b", clock=[[5, 100, 9]]),
        part("worker 1", host="b", clock=[[6, 90, 2]]),
    ]
    assert align(parts)["b"].offsets == (90,)
    alone = [part("worker 0", host="b", clock=[[5, 100, 9]]), part("server 0", host="b")]
    assert align(alone)["b"].offsets == (0,)


def test_nodes_that_could_not_be_aligned_are_kept_apart():
    """Their times are on no other node's clock: so no flow may join them, and their process says so."""
    packet = (0, 1, 0, 100)
    parts = [
        part("scheduler"),
        part("server 0", [(1050, Kind.READ, *packet, "worker 0"), (1060, Kind.READ, *packet, "worker 1")]),
        part("worker 0", [(40, Kind.WRITTEN, *packet, "server 0")], host="b", clock=[[10, 1000, 3000]]),
        part("worker 1", [(77_000, Kind.WRITTEN, *packet, "server 0")], host="c"),
    ]
    trace = merge(parts)
    assert [(n.aligned, n.uncertainty) for n in trace.nodes] == [(True, 0), (True, 0), (True, 3000), (False, 0)]
    assert trace.nodes[2].events["time"].tolist() == [0]
    assert trace.nodes[1].events["time"].tolist() == [10, 20]
    assert trace.nodes[3].events["time"].tolist() == [0]
    assert [(w.sender, w.written, w.read) for w in ways(trace)] == [(9, 0, 10), (11, None, 20)]
    events = list(chrome.events(trace))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert ["CLOCK NOT ALIGNED" in name for name in names] == [False, False, False, True]
    assert "±3 us" in names[2]
    assert len(check_format(events)) == 1


def test_events_that_were_overwritten_are_named():
    (name,) = [
        e["args"]["name"] for e in chrome.events(merge([part("worker 0", lost=7)])) if e["name"] == "process_name"
    ]
    assert "7 events before were overwritten" in name


def test_the_rates_of_links_add_up_to_what_they_carried():
    events = list(chrome.events(merge(Scene(workers=2, tensors=((30, 0),)).play(4))))
    check_format(events)
    pid = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"].startswith("worker 1"))
    for name in ("Mbit/s to server 0", "Mbit/s from server 0"):
        points = [(e["ts"], e["args"]["value"]) for e in events if e["name"] == name and e["pid"] == pid]
        bits = sum(value * (until - begin) for (begin, value), (until, _) in zip(points, points[1:]))
        assert bits / 8 == pytest.approx(4 * 30 * PACKET, rel=0.01)
        assert points[-1][1] == 0
