"""iperf3: one stream of TCP over loopback, one way or --bidir; knows nothing of tensors, so --size is not used.

python -m benchmarks.peers.iperf3 [--bidir]
python -m benchmarks.peers.iperf3 --bidir --between HOST    # on the test bed: from worker 0 to worker 1, which is HOST

One way only the bytes to the server count, both ways those of both.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from typing import Any

from .common import Options, PeerError, Result, options_of, parser, report
from .processes import HOST, TICK_S, free_port, processes

LENGTH = "256K"
READY = "Server listening"
READY_S = 10.0
PORT = "5201"
"""iperf3's port, in a cluster whose nodes have an address each."""


def result_of(report_of_iperf3: dict[str, Any]) -> Result:
    """The figures in iperf3's JSON."""
    if "error" in report_of_iperf3:
        raise PeerError(f"iperf3: {report_of_iperf3['error']}")
    end = report_of_iperf3["end"]
    sums = [end["sum_received"]] + [end[key] for key in ("sum_received_bidir_reverse",) if key in end]
    seconds = max(float(one["seconds"]) for one in sums)
    received = sum(int(one["bytes"]) for one in sums)
    use = end["cpu_utilization_percent"]
    cpu_s = (float(use["host_total"]) + float(use["remote_total"])) / 100 * seconds
    return Result(received / 1e6 / seconds, cpu_s / (received / 1e9), None, None, None)


def server_command(host: str, port: str) -> list[str]:
    """The command of a server for one test."""
    return ["iperf3", "-s", "-1", "-B", host, "-p", port, "--forceflush"]


def client_command(host: str, port: str, options: Options, bidir: bool) -> list[str]:
    """The command of a client; it prints JSON."""
    command = ["iperf3", "-c", host, "-p", port, "-J", "-l", LENGTH, "-C", "cubic"]
    return [*command, "-t", str(max(round(options.seconds), 1)), *(["--bidir"] if bidir else [])]


def run(options: Options, bidir: bool) -> Result:
    """A server and a client."""
    if (options.workers, options.servers) != (1, 1):
        raise PeerError("iperf3 is one stream: --workers 1 --servers 1.")
    need_iperf3()
    port = str(free_port())
    with processes() as started:
        started.start("server", server_command(HOST, port))
        # A connection that checks whether it listens would be its single test.
        started.wait_until(lambda: READY in started.log("server"), READY_S, "iperf3's server")
        started.start("client", client_command(HOST, port, options, bidir))
        started.wait(["client"], options.patience_s)
        return result_of(json.loads(started.log("client")))


def need_iperf3() -> None:
    """PeerError if it is not installed."""
    if shutil.which("iperf3") is None:
        raise PeerError("iperf3 is not installed: apt-get install iperf3.")


def run_between(options: Options, bidir: bool, host: str) -> Result | None:
    """Runs as a worker of a cluster: worker 1, at `host`, serves, and worker 0 measures."""
    need_iperf3()
    rank = os.environ.get("DMLC_WORKER_ID")
    if rank is None:
        raise PeerError(
            "--between is for two workers with DMLC_WORKER_ID: python -m benchmarks.shaped --run iperf3 runs it"
        )
    if rank == "1":
        with processes() as started:
            started.start("server", server_command(host, PORT))
            started.wait(["server"], options.patience_s)
        return None
    deadline = time.monotonic() + READY_S
    while True:
        done = subprocess.run(
            client_command(host, PORT, options, bidir), capture_output=True, text=True, timeout=options.patience_s
        )
        found = json.loads(done.stdout)
        if "unable to connect" not in found.get("error", "") or time.monotonic() > deadline:
            return result_of(found)
        time.sleep(TICK_S)


def main() -> None:
    """The command line."""
    made = parser("iperf3, one stream of TCP over loopback")
    made.set_defaults(workers=1)
    made.add_argument("--bidir", action="store_true", help="both ways at once")
    made.add_argument("--between", metavar="HOST", help="as a worker of a cluster: from worker 0 to worker 1, at HOST")
    parsed = made.parse_args()
    options = options_of(parsed)
    if parsed.between:
        report(lambda: run_between(options, parsed.bidir, parsed.between))
    else:
        report(lambda: run(options, parsed.bidir))


if __name__ == "__main__":
    main()
