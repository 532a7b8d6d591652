"""`fptps doctor`: every broken set-up is named; and its checks, by tables."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys

import pytest
from benchmarks.testbed.network import Network, tool
from benchmarks.testbed.quantities import Rate
from click.testing import CliRunner
from helpers import in_threads
from on_testbed import needs_network

from fptps._cli import main
from fptps._doctor import facts, gather, measure, show, wire
from fptps._doctor.checks import findings
from fptps._doctor.facts import Facts, Interface
from fptps._doctor.gather import Reach, Report
from fptps._doctor.measure import Dial, Pair

NODES = ("worker:0", "worker:1")
PORT = 9002
DOCTOR = "from fptps._cli import main; main()"
AHEAD = "import time; real = time.time; time.time = lambda: real() + 3; " + DOCTOR
HOSTS_FILE = "127.0.0.1 localhost\n{}\n"


class Bed:
    """Two hosts in network namespaces of their own, with a link between them."""

    def __init__(self, network):
        self._network = network
        self.addresses = [network.address(node) for node in NODES]

    def at(self, host, *lines):
        """Runs commands of ip and tc at a host."""
        for line in lines:
            command, *rest = line.split()
            subprocess.run([*self._network.enter(NODES[host]), tool(command), *rest], check=True, capture_output=True)

    def redirect(self, host, device, direction="ingress", match="u32 0 0"):
        """Has packets of a host's link go to another device."""
        action = f"action mirred egress redirect dev {device}"
        self.at(host, f"tc filter add dev eth0 {direction} protocol ip u32 match {match} {action}")

    def run(self, names=None, programs=(DOCTOR, DOCTOR), settings=({}, {}), hosts_files=None, options=()):
        """The doctors of both hosts: the first one's report, and the exit codes."""
        command = ["doctor", "--hosts", ",".join(names or self.addresses), "--json", *options]

        def doctor(host):
            enter = self._network.enter(NODES[host])
            if hosts_files:
                mount = f'mount --bind {hosts_files[host]} /etc/hosts && exec "$@"'
                enter = [*enter, tool("unshare"), "--mount", "sh", "-c", mount, "sh"]
            started = [*enter, sys.executable, "-c", programs[host], *command]
            environment = {**os.environ, **settings[host]}
            return subprocess.run(started, env=environment, capture_output=True, text=True, timeout=120, check=False)

        first, second = in_threads(lambda: doctor(0), lambda: doctor(1))
        assert first.stdout, (first.stderr, second.stderr)
        return json.loads(first.stdout), (first.returncode, second.returncode)

    def named(self, *arguments, **options):
        """The one finding of both doctors."""
        report, codes = self.run(*arguments, **options)
        assert codes == (1, 1), report["findings"]
        (finding,) = report["findings"]
        assert finding["why"]
        assert finding["mend"]
        return finding


@pytest.fixture
def bed():
    """Its link has a rate that needs little of the processor, which may be busy with other tests."""
    with contextlib.closing(Network(dict.fromkeys(NODES, Rate("50mbit", "50mbit")))) as network:
        yield Bed(network)


@pytest.fixture
def unshaped():
    with contextlib.closing(Network(dict.fromkeys(NODES))) as network:
        yield Bed(network)


@needs_network
def test_nothing_is_wrong(bed):
    report, codes = bed.run()
    assert (report["findings"], codes) == ([], (0, 0))
    (pair,) = report["pairs"]
    assert min(pair["there"], pair["back"], pair["there_both"], pair["back_both"], pair["delay"]) > 0


@needs_network
def test_the_wrong_interface(bed):
    bed.at(1, "ip link add eth1 type ifb", "ip addr add 192.168.5.2/24 dev eth1", "ip link set eth1 up")
    finding = bed.named(settings=({}, {"DMLC_INTERFACE": "eth1"}))
    assert finding["where"] == bed.addresses[1]
    assert "announces 192.168.5.2 of eth1 (by DMLC_INTERFACE)" in finding["what"]
    assert f"unset DMLC_INTERFACE, or `export DMLC_INTERFACE=eth0` ({bed.addresses[1]})" in finding["mend"]


@needs_network
def test_an_mtu_black_hole(bed):
    """What has 1024 bytes or more is dropped, without a word."""
    bed.at(0, "ip link add hole type ifb", "tc qdisc add dev eth0 clsact")
    for host in range(2):  # each packet of its own, as they would be on a wire
        bed.at(host, "ip link set eth0 gso_max_segs 1")
    for bit in range(10, 16):
        bed.redirect(0, "hole", match=f"u16 {1 << bit:#x} {1 << bit:#x} at 2")
    finding = bed.named()
    assert "an MTU black hole (packets of 852 bytes arrive, the interfaces have 1500)" in finding["what"]
    assert "`ip link set dev eth0 mtu 852`" in finding["mend"]


@needs_network
@pytest.mark.parametrize("host", [0, 1])
def test_a_closed_data_port(bed, host):
    bed.at(host, "ip link add hole type ifb", "tc qdisc add dev eth0 clsact")
    bed.redirect(host, "hole", match=f"ip dport {PORT} 0xffff")
    finding = bed.named()
    assert finding["where"] == f"{bed.addresses[1 - host]} to {bed.addresses[host]}"
    assert finding["what"] == f"no connection to {bed.addresses[host]}:{PORT}: no answer within 3 s"


@needs_network
def test_a_clock_that_is_off(bed):
    finding = bed.named(programs=(DOCTOR, AHEAD))
    assert finding["where"] == bed.addresses[1]
    assert finding["what"] == f"its clock is 3.0 s ahead of {bed.addresses[0]}'s"


@needs_network
def test_a_name_that_resolves_to_loopback(bed, tmp_path):
    """As on Debian, where the installer writes it so."""
    alpha, beta = (f"{address} {name}" for address, name in zip(bed.addresses, ("alpha", "beta")))
    files = [tmp_path / "alpha", tmp_path / "beta"]
    files[0].write_text(HOSTS_FILE.format(f"{alpha}\n{beta}"))
    files[1].write_text(HOSTS_FILE.format(f"127.0.1.1 beta\n{alpha}"))
    finding = bed.named(names=("alpha", "beta"), hosts_files=files)
    assert finding["where"] == "beta"
    assert finding["what"] == "its own name resolves to 127.0.1.1"
    assert f"/{bed.addresses[1]}\\1/' /etc/hosts`" in finding["mend"]


def shape(bed, host, *directions):
    """Gives a host's link 20 Mbit/s, for both directions together if both are named."""
    bed.at(host, "ip link add shared type ifb", "ip link set shared up", "tc qdisc add dev eth0 clsact")
    bed.at(host, "tc qdisc add dev shared root tbf rate 20mbit burst 16kb limit 256kb")
    for direction in directions:
        bed.redirect(host, "shared", direction)


@needs_network
def test_a_half_duplex_rate(unshaped):
    shape(unshaped, 0, "ingress", "egress")
    finding = unshaped.named()
    assert finding["where"] == " and ".join(unshaped.addresses)
    assert finding["what"].startswith("half duplex: ")


@needs_network
def test_a_full_duplex_rate(unshaped):
    """The same, with a link for each direction."""
    shape(unshaped, 0, "egress")
    shape(unshaped, 1, "egress")
    report, codes = unshaped.run()
    assert (report["findings"], codes) == ([], (0, 0))


@needs_network
def test_a_host_without_a_doctor(bed):
    command = ["doctor", "--hosts", ",".join(bed.addresses), "--timeout", "1"]
    enter = bed._network.enter(NODES[0])
    done = subprocess.run([*enter, sys.executable, "-c", DOCTOR, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert f"1. {bed.addresses[1]}: its doctor does not answer on port {PORT}: Connection refused" in done.stdout
    enter = bed._network.enter(NODES[1])
    done = subprocess.run([*enter, sys.executable, "-c", DOCTOR, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"no contact with {bed.addresses[0]}, the first host, within 1 s: Connection refused" in done.stderr


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_of_one_core(tmp_path, version):
    """Facts of a made-up /proc and /sys: a quota of one core, on a machine with more."""
    (tmp_path / "proc/self").mkdir(parents=True)
    if version == 1:
        (tmp_path / "proc/self/cgroup").write_text("9:name=systemd:/\n1:cpu,cpuacct:/job\n")
        folder = tmp_path / "sys/fs/cgroup/cpu/job"
        files = {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}
    else:
        (tmp_path / "proc/self/cgroup").write_text("0::/slice/job\n")
        folder = tmp_path / "sys/fs/cgroup/slice"  # of the one above
        files = {"cpu.max": "100000 100000"}
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("this process may use one core only")
    mine = facts.facts(["here"], {}, tmp_path)
    assert (mine.usable, mine.quota, mine.threads) == (1.0, True, cores)
    few, threads = findings(report({0: mine}, hosts=["here"]))
    assert few.what == f"a cgroup's quota allows 1 of {mine.cores} cores"
    assert threads.what.startswith(f"torch and numpy start {cores} threads (they count {cores} cores)")
    assert "export OMP_NUM_THREADS=1" in threads.mend


def host(address="10.0.0.1", **changes):
    """A host on which nothing is wrong."""
    sound = Facts(
        versions={"python": "3.11.7", "fptps": "1.0"},
        cores=8,
        usable=8.0,
        quota=False,
        threads=8,
        threads_by="",
        memory=0,
        memory_used=0,
        interfaces=[Interface("lo", "127.0.0.1", 65536, 0, ""), Interface("eth0", address, 1500, 10000, "full")],
        announced=address,
        announced_by="",
        names={"a": ["10.0.0.1"], "b": ["10.0.0.2"], "c": ["10.0.0.3"]},
        reverse={},
        routes={},
        congestion="cubic",
        tcp={"tcp_window_scaling": 1, "tcp_sack": 1, "tcp_mtu_probing": 0, "rmem": 6 << 20, "wmem": 4 << 20},
        unknown={},
    )
    return dataclasses.replace(sound, **changes)


def pair(first, second, there=900.0, back=900.0, both=(880.0, 870.0), **changes):
    """Two hosts between which nothing is wrong."""
    sound = Pair(first, second, Dial(mtu=1500), 0.0002, 0.0, there, back, *both)
    return dataclasses.replace(sound, **changes)


def report(hosts_facts, pairs=(), hosts=("a", "b", "c"), **more):
    parts = {"back": [], "reaches": [], "silent": {}, **more}
    return Report(list(hosts)[: max(hosts_facts, default=2) + 1], PORT, hosts_facts, list(pairs), **parts)


HEALTHY = {0: host(), 1: host("10.0.0.2"), 2: host("10.0.0.3")}
PAIRS = [pair(0, 1), pair(0, 2), pair(1, 2)]


def test_a_sound_cluster_has_no_findings():
    assert findings(report(HEALTHY, PAIRS)) == []
    assert "nothing is wrong" in show.as_text(report(HEALTHY, PAIRS), [])


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"versions": {"python": "3.12.1", "fptps": "1.0"}}, "b", "python differs: a 3.11.7, b 3.12.1"),
        ({"versions": {"python": "3.11.9", "fptps": "1.1"}}, "b", "fptps differs: a 1.0, b 1.1"),
        ({"congestion": "bbr"}, "b", "the congestion control differs: a cubic, b bbr"),
        ({"tcp": {"tcp_sack": 0}}, "b", "net.ipv4.tcp_sack is off"),
        ({"tcp": {"tcp_window_scaling": 0}}, "b", "net.ipv4.tcp_window_scaling is off"),
        ({"usable": 1.0, "threads": 1}, "b", "the affinity allows 1 of 8 cores"),
        (
            {"threads": 16, "threads_by": "OMP_NUM_THREADS"},
            "b",
            "torch and numpy start 16 threads (OMP_NUM_THREADS=16)",
        ),
        ({"memory": 1 << 30, "memory_used": 1020 << 20}, "b", "1020 of the 1024 MB that a cgroup allows are in use"),
        ({"unknown": {"FPTPS_RECOVRY": "FPTPS_RECOVERY"}}, "b", "FPTPS_RECOVRY is set, which fptps does not know"),
        (
            {"interfaces": [Interface("eth0", "10.0.0.2", 9000, 0, "")]},
            "b",
            "another MTU than the other hosts: a 1500, b 9000",
        ),
        (
            {"interfaces": [Interface("eth0", "10.0.0.2", 1500, 100, "half")]},
            "b",
            "eth0 runs at 100 Mbit/s, half duplex",
        ),
        ({"names": {"a": ["127.0.1.1"]}}, "b", "the name a resolves to 127.0.1.1"),
        ({"names": {"a": []}}, "b", "the name a does not resolve"),
        ({"reverse": {"10.0.0.1": "b"}}, "b", "a resolves to 10.0.0.1, and 10.0.0.1 to b"),
        (
            {"announced": "", "announced_by": "DMLC_INTERFACE"},
            "b",
            "DMLC_INTERFACE names an interface that is not there",
        ),
    ],
)
def test_findings_about_a_host(changes, where, what):
    (finding,) = findings(report({0: host(), 1: host("10.0.0.2", **changes)}))
    assert finding.where == where
    assert finding.what.startswith(what)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"dial": Dial("Connection refused", "refused")}, "no connection to c:9002: Connection refused"),
        ({"lost": True}, "small packets arrive, large ones do not: an MTU black hole"),
        ({"both": (500.0, 400.0)}, "half duplex: 900 and 900 Mbit/s one way at a time, 500 and 400 both ways at once"),
        (
            {"there": 100.0, "both": (100.0, 800.0)},
            "100 Mbit/s there and 900 back, where pairs of hosts usually have 900",
        ),
        ({"offset": 3.0, "delay": 0.2}, "its clock is 3.0 s ahead of most others'"),
        ({"offset": -3.0}, "its clock is 3.0 s behind most others'"),
        ({"offset": 3.0, "delay": 6.0}, None),  # nobody can tell
        ({"there": 9000.0, "back": 9000.0, "both": (4000.0, 4000.0)}, None),  # of processors
    ],
)
def test_findings_about_a_pair(changes, what):
    big = {"tcp": {"rmem": 1 << 34, "wmem": 1 << 34}}
    hosts = {rank: dataclasses.replace(each, **big) for rank, each in HEALTHY.items()}
    found = findings(report(hosts, [pair(0, 1), pair(0, 2, **changes), pair(1, 2)]))
    assert [finding.what for finding in found] == ([what] if what else [])


def test_a_small_buffer_for_a_long_way():
    """900 Mbit/s over 100 ms are 11 MB on their way."""
    small, other = findings(report({0: host(), 1: host("10.0.0.2")}, [pair(0, 1, delay=0.1)]))
    assert small.where == "a"
    assert other.where == "b"
    assert small.what == "the largest TCP buffer has 4194304 bytes, and 11250000 are on the way at once to or from b"
    assert "tcp_wmem='4096 65536 22500000'" in small.mend


def test_an_announced_address_that_only_some_cannot_reach():
    reaches = [Reach(0, 1, Dial("timed out", "timeout")), Reach(2, 1, Dial()), Reach(1, 0, Dial())]
    facts_ = {
        **HEALTHY,
        1: host("10.0.0.2", announced="172.17.0.1", announced_by="DMLC_NODE_HOST", routes={"a": "10.0.0.2"}),
    }
    (finding,) = findings(report(facts_, PAIRS, reaches=reaches))
    assert finding.where == "b"
    assert "a node announces 172.17.0.1 (by DMLC_NODE_HOST), which a cannot connect to: timed out" in finding.what
    assert finding.mend == "unset DMLC_NODE_HOST, or `export DMLC_INTERFACE=eth0` (10.0.0.2)"


def test_a_silent_host():
    (finding,) = findings(Report(["a", "b"], PORT, {0: host()}, [], [], [], {1: "Connection refused"}))
    assert finding.where == "b"
    assert finding.what == "its doctor does not answer on port 9002: Connection refused"


@pytest.mark.parametrize("count", range(2, 12))
def test_every_pair_is_measured_once(count):
    """And each host in one pair at a time."""
    hosts = list(range(10, 10 + count))
    all_ = gather.rounds(hosts)
    pairs = [each for round_ in all_ for each in round_]
    assert sorted(pairs) == [(a, b) for a in hosts for b in hosts if a < b]
    for round_ in all_:
        members = [host for each in round_ for host in each]
        assert len(members) == len(set(members))


@pytest.mark.parametrize(
    ("arrived", "rate"),
    [
        ([], 0.0),
        ([(1.0, 1000)], 8.0),  # all at once: as if within a millisecond
        ([(1.0, 125_000), (1.5, 250_000)], 4.0),
        ([(1.0, 0), (1.3, 0), (2.0, 875_000)], 10.0),  # the first 0.3 s do not count
    ],
)
def test_rates(arrived, rate):
    assert measure.rate_of(arrived, 1.0) == pytest.approx(rate)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"{" * 70000,
        b"[" * 50000 + b"\n",
        b"[1]\n",
        b"null\n",
        b'{"doctor": 1}\n',
        b'{"doctor": true, "host": 1, "to": 0, "token": ""}\n',
        b'{"doctor": 1, "host": 1, "to": 0, "token": 5}\n',
        b'{"doctor": 1, "host": 1, "to": 5, "token": "word"}\n',
        b'{"doctor": 1, "host": 1, "to": 0, "token": "other"}\n',
        b'{"doctor": 1, "host": 1, "to": 0, "token": "word"}\n{"do": "pair", "target": 5}\n',
        b'{"doctor": 1, "host": 1, "to": 0, "token": "word"}\n{"do": "sink", "seconds": 1e9}\n',
        b'{"doctor": 1, "host": 1, "to": 0, "token": "word"}\n{"do": ["facts"]}\n',
    ],
)
def test_strangers(sent):
    """None of them learns anything, or ends the doctor."""
    from fptps._doctor.listener import Answers, Listener
    from fptps._doctor.measure import Hello, Target

    me = Hello(1, 0, 0, "word")
    offered = []
    with contextlib.closing(Listener(me, 0, Answers(me, host()), lambda *offer: offered.append(offer))) as listener:
        with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(60)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while data := stranger.recv(65536):
                    answer += data
        assert b"versions" not in answer
        channel, dial = measure.connect(Hello(1, 1, 0, "word"), Target(0, "127.0.0.1", listener.port))
        assert channel is not None, dial
        assert wire.decode(Facts, channel.ask({"do": "facts"}, 60)) == host()
        channel.close()
    assert offered == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cores": "8"}, "makes no sense"),
        ({"cores": True}, "makes no sense"),
        ({"usable": float("nan")}, "makes no sense"),
        ({"names": {"a": "10.0.0.1"}}, "makes no sense"),
        ({"interfaces": [{"name": "eth0"}]}, "lacks address"),
    ],
)
def test_facts_that_make_no_sense(changes, error):
    with pytest.raises(wire.BrokenPeerError, match=error):
        wire.decode(Facts, {**wire.encode(host()), **changes})


def test_long_and_strange_texts_are_cut():
    found = wire.decode(Facts, {**wire.encode(host()), "announced": "\x1b[31m" + "x" * 1000})
    assert found.announced.startswith(" [31m")
    assert len(found.announced) == wire.LONGEST_TEXT


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hosts", "a,a"], "a host is named twice"),
        (["--hosts", ",".join(f"h{n}" for n in range(257))], "names 257 hosts: 256 at most"),
        (["--hosts", "198.51.100.1,198.51.100.2"], "none of them is this host"),
        (["--hosts", "127.0.0.1,127.0.0.2"], "127.0.0.1 and 127.0.0.2 are all this host"),
        (["--port", "0"], "0 is not in the range"),
    ],
)
def test_wrong_use(arguments, said):
    done = CliRunner().invoke(main, ["doctor", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_a_port_in_use():
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(main, ["doctor", "--hosts", "127.0.0.1,198.51.100.2", "--port", port])
    assert done.exit_code == 1
    assert f"cannot listen at port {port}: Address already in use. Does a node run there?" in done.output


def test_this_host_alone():
    done = subprocess.run(
        [sys.executable, "-m", "fptps", "doctor", "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (mine,) = json.loads(done.stdout)["hosts"].values()
    assert mine["cores"] == os.cpu_count()
    assert any("torch and numpy start 1000 threads" in each["what"] for each in json.loads(done.stdout)["findings"])


def test_the_text_fits_a_terminal():
    facts_ = {**HEALTHY, 1: host("10.0.0.2", congestion="bbr", usable=1.0)}
    full = report(
        facts_, [pair(0, 1, lost=True, passes=800), pair(0, 2), pair(1, 2, dial=Dial("timed out", "timeout"))]
    )
    text = show.as_text(full, findings(full))
    assert max(map(len, text.splitlines())) <= show.WIDTH
    assert text.count("   why   ") == text.count("   mend  ") == len(findings(full)) > 3
