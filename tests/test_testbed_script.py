"""benchmarks.testbed: what happens during a run: changes of rates, other programs' traffic, delay, loss; the record."""

import json
import math
import os
import signal
import subprocess
import sys

import pytest
from benchmarks import testbed
from benchmarks.testbed import found, network
from benchmarks.testbed.bed import plan_hindrances
from benchmarks.testbed.cli import main
from benchmarks.testbed.director import TIMELINE, Director, Event, Span, span_of
from benchmarks.testbed.quantities import Hindrance, Link
from benchmarks.testbed.record import Record
from benchmarks.testbed.script import Timetable, change, traffic
from benchmarks.testbed.usage import Sample, thinned
from click.testing import CliRunner
from on_testbed import COMMAND, environment, needs_network, run

ITERATE = f"""
import json, os, sys, time
import numpy as np
import fptps

with fptps.KVWorker() as kv, open(os.environ[{TIMELINE!r}], "ab", buffering=0) as timeline:
    mine = np.full(int(sys.argv[2]), kv.rank + 1, np.float32)
    kv.init(0, mine)
    for number in range(int(sys.argv[1])):
        begin = time.monotonic()
        assert (kv.push_pull(0, mine).result() == kv.num_workers * (kv.num_workers + 1) / 2).all()
        end = time.monotonic()
        line = dict(name="iteration", rank=kv.rank, number=number, begin=begin, end=end)
        timeline.write(json.dumps(line).encode() + b"\\n")
        kv.barrier()
"""


def iterate(iterations, count):
    """A program that sums so many float32 so often, and reports each time."""
    return [sys.executable, "-c", ITERATE, str(iterations), str(count)]


@needs_network
def test_rates_change_by_iterations_and_back():
    """The connections last; the record says when."""
    changes = [*change("iteration:2", "worker:0=30mbit,100mbit"), *change("iteration:4", "worker:0=100mbit")]
    never = change("iteration:99", "worker:0=1mbit")
    with testbed.TestBed(2, 1, "100mbit", script=[*never, *changes]) as bed:
        code, _, err = run(bed, iterate(6, 500_000))
    assert code == 0, err
    record = bed.record
    assert [event.text for event in record.events] == ["worker:0=30mbit,100mbit", "worker:0=100mbit"]
    assert [(span.rank, span.number) for span in sorted(record.spans, key=lambda s: (s.rank, s.number))] == [
        (rank, number) for rank in range(2) for number in range(6)
    ]
    (slow, fast), iterations = record.events, record.iterations()
    assert iterations[1].end <= slow.begin <= slow.end
    assert iterations[3].end <= fast.begin <= fast.end
    # A sample's rates are read after its time.
    times = [sample.time for sample in record.samples]
    rates = [sample.rates[Link("worker:0", True)] for sample in record.samples]
    slower = rates.index(30e6)
    faster = rates.index(100e6, slower)
    assert rates == [100e6] * slower + [30e6] * (faster - slower) + [100e6] * (len(rates) - faster)
    assert times[slower - 1] < slow.end
    assert times[slower + 1] > slow.begin
    assert times[faster - 1] < fast.end
    assert [*times, math.inf][faster + 1] > fast.begin
    assert {sample.rates[Link("worker:0", False)] for sample in record.samples} == {100e6}
    for span in record.as_json()["spans"]:
        if span["rank"] == 0:
            assert len(span["use"]) == 6
            assert 0 < span["use"]["worker:0 sends"] < 2
    assert "worker:0=1mbit: the run was over before iteration:99" in bed.table()
    assert "worker:0=30mbit,100mbit" in found.table(found.phases(iterations, record.events))


@needs_network
def test_other_programs_take_their_part_of_a_link():
    """UDP at 30 Mbit/s each way leaves 70 of 100; TCP takes what it gets."""
    flows = [
        *traffic("udp", "iteration:1..iteration:3", "worker:0=30mbit"),
        *traffic("tcp", "iteration:3..", "server:0=0,1gbit"),
    ]
    with testbed.TestBed(1, 1, "100mbit", script=flows) as bed:
        code, _, err = run(bed, iterate(5, 1_000_000))
    assert code == 0, err
    record, ours = bed.record, 5 * 4e6
    texts = [event.text.partition(",")[0] for event in record.events]
    assert texts[:3] == ["udp worker:0=30mbit begins", "udp worker:0=30mbit ends", "tcp server:0=0"]
    sent = float(record.events[1].text.split()[-5]) * 1e6 / 2
    carried = record.samples[-1].carried
    outside = carried[Link("outside", True)], carried[Link("outside", False)]
    assert ours < carried[Link("worker:0", True)] - outside[1] < 1.3 * ours
    assert 0.1 * sent < outside[1] < 1.5 * sent  # from worker 0, besides TCP's acknowledgements
    received = carried[Link("server:0", False)] - carried[Link("worker:0", True)] + outside[1]
    assert 5e5 < received < 12.5e6 * record.samples[-1].time
    assert "ends, after" in record.events[-1].text


@needs_network
def test_delay_and_loss():
    """Sums are right over a link that loses packets and delays them; the record says how many."""
    losses = {"all": "1%", "server:0": "0%"}
    delays = {"worker:0": "20ms,10ms"}
    with testbed.TestBed(2, 1, "200mbit", delays=delays, losses=losses, seed=7) as bed:
        code, _, err = run(bed, iterate(3, 250_000))
        passed, spans = bed.record.passed, bed.record.iterations()
    assert code == 0, err
    assert set(passed) == {Link(node, sends) for node in ("worker:0", "worker:1") for sends in (True, False)}
    for link, found_ in passed.items():
        assert found_["packets"] > 500
        assert 0 < found_["lost"] < 0.05 * found_["packets"], link
        assert found_["overflows"] == 0
    assert all(span.end - span.begin > 0.03 for span in spans)
    assert "packets lost on purpose" in bed.table()


@needs_network
def test_a_second_run_begins_as_the_first():
    given = change("iteration:1", "worker:0=100mbit")
    with testbed.TestBed(1, 0, "200mbit", losses={"worker:0": "0%,1%"}, script=given) as bed:
        records = []
        for _ in range(2):
            code, _, err = run(bed, iterate(2, 10))
            assert code == 0, err
            records.append(bed.record)
        total = bed._open.passed()[Link("worker:0", True)]["packets"]
    for record in records:
        assert record.samples[0].rates[Link("worker:0", True)] == 200e6
        assert record.samples[-1].rates[Link("worker:0", True)] == 100e6
        assert [event.text for event in record.events] == ["worker:0=100mbit"]
        assert len(record.spans) == 2
    first, second = (record.passed[Link("worker:0", True)]["packets"] for record in records)
    assert first > 0
    assert second > 0
    assert first + second <= total


FLOOD = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
    flood.connect((sys.argv[1], 9))
    for _ in range(12_000):
        flood.send(b"one")
"""


@needs_network
def test_a_forwarder_that_does_not_keep_up_is_reported():
    """It is stopped while 12,000 packets come, of which 10,000 can wait."""
    with testbed.TestBed(1, 0, "10gbit", delays={"worker:0": "0ms,1ms"}) as bed:
        network_, link = bed._open, Link("worker:0", True)
        forwarder = network_._forwarders["worker:0"]
        before = network_.passed()[link]
        assert before["overflows"] == 0
        # Nobody answers an ARP request meanwhile.
        neighbour = f"neigh add {bed.address('scheduler')} lladdr 02:00:00:00:00:01 dev eth0 nud permanent"
        subprocess.run([*network_.enter("worker:0"), network.tool("ip"), *neighbour.split()], check=True)
        os.kill(forwarder.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, forwarder.pid, os.WSTOPPED | os.WNOWAIT)
        flood = [sys.executable, "-S", "-c", FLOOD, bed.address("scheduler")]
        subprocess.run([*network_.enter("worker:0"), *flood], check=True)
        os.kill(forwarder.pid, signal.SIGCONT)
        after = network_.passed()[link]
    assert 1_900 < after["overflows"] < 2_100
    record = Record(passed={link: after})
    assert "the link is not faithful" in record.lines()[0]


REPORT_NONSENSE = f"""
import os
with open(os.environ[{TIMELINE!r}], "ab", buffering=0) as timeline:
    for _ in range(100):
        timeline.write(b"nonsense" * 512 + b"\\n")
    timeline.write(b"without an end")
"""


@needs_network
def test_nonsense_in_the_timeline_is_an_error_and_blocks_nobody():
    with testbed.TestBed(1, 0) as bed, pytest.raises(testbed.TestBedError, match="begin and end is expected"):
        run(bed, [sys.executable, "-c", REPORT_NONSENSE])


@needs_network
def test_all_of_it_in_a_user_namespace(monkeypatch):
    """What happens where the user is not root: the workers reach the timeline, the forwarder its devices."""
    monkeypatch.setattr(network, "WAYS", (["--user", "--map-root-user"],))
    if (reason := testbed.why_not()) is not None:
        pytest.skip(reason)
    given = [*change("iteration:1", "worker:1=400mbit"), *traffic("tcp", "iteration:1..iteration:2", "worker:1=1mbit")]
    with testbed.TestBed(2, 1, "500mbit", delays={"worker:0": "2ms"}, script=given) as bed:
        code, _, err = run(bed, iterate(3, 1000))
    assert code == 0, err
    assert len(bed.record.spans) == 6
    assert [event.text.partition(",")[0] for event in bed.record.events] == [
        "worker:1=400mbit",
        "tcp worker:1=1mbit begins",
        "tcp worker:1=1mbit ends",
    ]
    assert bed.record.passed[Link("worker:0", True)]["packets"] > 0


@needs_network
def test_check_measures_what_was_asked_for(tmp_path):
    file = tmp_path / "record.json"
    options = ["-n1", "-s1", "--rate", "50mbit,20mbit", "--delay", "worker:0=10ms,15ms", "--check", "--json", str(file)]
    done = subprocess.run([*COMMAND, *options], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    checked = {(each["node"], each["direction"]): each for each in json.loads(file.read_text())["check"]}
    assert len(checked) == len(done.stdout.splitlines()) - 1 == 4
    for (node, direction), each in checked.items():
        assert each["rate"] == (50e6 if direction == "send" else 20e6)
        assert 0.1 * each["rate"] < each["tcp_rate"] < 2 * each["rate"]
        if node == "server:0":
            assert (each["round_trip_s"], each["packets"]) == (0, 0)
        else:
            assert each["packets"] > 100
            assert each["round_trip_s"] == pytest.approx(0.025)
            assert each["tcp_round_trip_s"] > 0.025  # never earlier than the delay
        assert each["lost"] == 0


def test_the_timetable_keeps_its_order():
    """Pure: seconds and iterations are passed in."""
    given = [
        *change("3s", "worker:0=1mbit"),
        *change("iteration:2", "worker:0=2mbit"),
        *change("0.5s", "worker:0=3mbit"),
    ]
    flow = traffic("udp", "1s..3s", "worker:0=1mbit")
    table = Timetable([*given, *flow])

    def take(now, iterations):
        return [str(entry.action) for entry in table.take(now, iterations)]

    assert table.wait_s(0.25) == 0.25
    assert take(0.25, 0) == []
    assert take(0.5, 1) == ["worker:0=3mbit"]
    assert take(0.6, 2) == ["worker:0=2mbit"]
    assert table.wait_s(2.0) == 0.0
    assert take(9.0, 3) == [f"{flow[0].action}", "worker:0=1mbit", f"{flow[1].action}"]
    assert table.wait_s(9.0) == math.inf


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--change", "3s", "worker:1=1mbit"], "there is no 'worker:1': worker:0 are expected"),
        (["--change", "3s", "worker:0=quick"], "'quick' is not a rate"),
        (["--change", "soon", "worker:0=1mbit"], "'soon' is not a time of a run: 3s or iteration:20"),
        (["--change", "3s", "worker:0"], "'worker:0': NODE=VALUE is expected"),
        (["--udp", "3s", "worker:0=1mbit"], "'3s' is not a span: BEGIN..END is expected"),
        (["--udp", "3s..2s", "worker:0=1mbit"], "the end is to come after the begin"),
        (["--udp", "3s..iteration:9", "worker:0=1mbit"], "both in seconds or both in iterations"),
        (["--tcp", "3s..", "scheduler=1mbit"], "there is no 'scheduler'"),
        (["--tcp", "3s..", "worker:0=0"], "sends nothing and receives nothing"),
        (["--delay", "wroker=5ms"], "there is no 'wroker': all, worker, worker:0 are expected"),
        (["--delay", "5"], "'5' is not a time"),
        (["--delay", "11s"], "at most 10 s are possible"),
        (["--loss", "0.1"], "'0.1' is not a loss"),
        (["--loss", "101%"], "'101%' is not a loss"),
        (["--change", "3s", "worker:0=1mbit"] * 2, "it is in the script twice"),
    ],
)
def test_what_is_wrong_is_named(options, text):
    done = CliRunner().invoke(main, [*options, "true"])
    assert done.exit_code == 1
    assert text in done.output


def test_nothing_to_run():
    done = CliRunner().invoke(main, ["-n2"])
    assert done.exit_code == 2
    assert "Missing argument 'PROGRAM...'" in done.output


def test_the_most_special_value_holds():
    planned = plan_hindrances(
        ["server:0", "worker:0", "worker:1"], {"all": "5ms", "worker:1": "1ms,2ms"}, {"worker": "1%,0%"}
    )
    assert planned == {
        "server:0": Hindrance(0.005, 0.005, 0, 0),
        "worker:0": Hindrance(0.005, 0.005, 0.01, 0),
        "worker:1": Hindrance(0.001, 0.002, 0.01, 0),
    }
    assert plan_hindrances(["worker:0"], {}, {}) == {}


@pytest.mark.parametrize(
    "line", [b"{}", b"[1]", b"no", b'{"name": "a", "rank": "b", "number": 0, "begin": 0, "end": 0}']
)
def test_a_line_that_is_no_span(line):
    with pytest.raises(testbed.TestBedError, match="a line of JSON with name, rank, number, begin and end is expected"):
        span_of(line, 0.0)


class Pipe:
    """In the place of what brings workers' reports."""

    def __init__(self):
        self.output, self.input = os.pipe()

    def write(self, line):
        os.write(self.input, line)


def test_reports_that_come_all_at_once_and_last():
    """A run may end before its last reports are read: what they lead to is done none the less."""
    pipe, changed = Pipe(), []
    given = [*change("iteration:2", "worker:0=2mbit"), *change("iteration:3", "worker:0=3mbit")]
    director = Director([*given, *change("iteration:4", "worker:0=4mbit")], None, pipe, 1.0, changed.append)
    for number in range(3):
        line = {"name": "iteration", "rank": 0, "number": number, "begin": number, "end": number + 1}
        pipe.write(json.dumps(line).encode() + b"\n")
    pipe.write(director._last + b"\n")
    with director:
        pass
    assert changed == [entry.action for entry in given]
    assert [str(entry.when) for entry in director.missed()] == ["iteration:4"]
    assert director.spans == [Span("iteration", 0, number, number - 1.0, number) for number in range(3)]
    for end in (pipe.output, pipe.input):
        os.close(end)


def test_how_soon_the_pace_is_found_again():
    """Ten iterations of 1 s, then after a change 5, 3, 2, 2.1, 2, 2 ... s."""
    taken = [1.0] * 10 + [5.0, 3.0, 2.0, 2.1] + [2.0] * 6
    iterations, now = [], 0.0
    for number, seconds in enumerate(taken):
        iterations.append(Span("iteration", 0, number, now, now + seconds))
        now += seconds
    event = Event(10.5, 10.6, "worker:0=1mbit")  # within the first slow one
    before, after = found.phases(iterations, [event])
    assert (before.event, before.seconds, before.found_after) == (None, [1.0] * 10, 0)
    assert (after.event, after.settled_s, after.found_after) == (event, 2.0, 2)
    lines = found.table([before, after]).splitlines()
    assert lines[2].split() == ["10.500", "10", "5000.0", "2000.0", "5000.0", "2", "worker:0=1mbit"]


def test_a_pace_that_is_lost_again_was_not_found():
    phase = found.Phase(None, [2.0, 2.0, 9.0, 2.0, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    assert phase.found_after == 5


def test_use_of_a_link_during_an_iteration():
    """100 bytes a second for 2 s, then 50 over a link of half the rate; times between samples are shared evenly."""
    link = Link("worker:0", True)
    samples = [
        Sample(time, {link: carried}, {link: rate})
        for time, carried, rate in [(0.0, 0, 1600.0), (1.0, 100, 1600.0), (2.0, 200, 800.0), (3.0, 250, 800.0)]
    ]
    record = Record(samples)
    assert record.use(link, 0.0, 2.0) == 0.5
    assert record.use(link, 1.5, 2.5) == pytest.approx(75 / 150)
    assert record.use(link, 5.0, 6.0) == 0.0
    assert thinned(samples) == samples
    assert thinned([Sample(i / 100, {}, {}) for i in range(25)]) == [Sample(t, {}, {}) for t in (0.0, 0.1, 0.2, 0.24)]


def test_plot(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed: make setup")
    from benchmarks.testbed import plot

    link = Link("worker:0", True)
    samples = [Sample(i / 50, {link: 1000 * i}, {link: 800_000.0}) for i in range(100)]
    spans = [Span(name, 0, i, i / 2, i / 2 + 0.4) for i in range(4) for name in ("iteration", "with bulk")]
    file, picture = tmp_path / "run.json", tmp_path / "run.png"
    Record(samples, {}, {}, [Event(0.5, 0.51, "worker:0=1mbit")], spans).write(file)
    done = CliRunner().invoke(plot.main, [str(file), str(picture)])
    assert done.exit_code == 0, done.output
    assert len(pyplot.imread(picture).shape) == 3
    use = plot.use_by_step([0.0, 1.0, 2.0], {"bytes": [0, 100, 150], "rates": [800.0, 400.0, 400.0]}, [0.0, 1.0, 2.0])
    assert use == [1.0, 1.0]
    file.write_text("{}")
    assert "it was written by --check alone" in CliRunner().invoke(plot.main, [str(file), str(picture)]).output
