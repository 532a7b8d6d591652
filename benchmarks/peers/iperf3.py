"""iperf3: one stream of TCP over loopback, one way or --bidir; knows nothing of tensors, so --size is not used.

python -m benchmarks.peers.iperf3 [--bidir]

One way only the bytes to the server count, both ways those of both.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from .common import Options, PeerError, Result, options_of, parser, report
from .processes import HOST, free_port, processes

LENGTH = "256K"
READY = "Server listening"
READY_S = 10.0


def result_of(report_of_iperf3: dict[str, Any]) -> Result:
    """What counts in the JSON of iperf3."""
    if "error" in report_of_iperf3:
        raise PeerError(f"iperf3: {report_of_iperf3['error']}")
    end = report_of_iperf3["end"]
    sums = [end["sum_received"]] + [end[key] for key in ("sum_received_bidir_reverse",) if key in end]
    seconds = max(float(one["seconds"]) for one in sums)
    received = sum(int(one["bytes"]) for one in sums)
    use = end["cpu_utilization_percent"]
    cpu_s = (float(use["host_total"]) + float(use["remote_total"])) / 100 * seconds
    return Result(received / 1e6 / seconds, cpu_s / (received / 1e9), None, None, None)


def run(options: Options, bidir: bool) -> Result:
    """A server and a client."""
    if (options.workers, options.servers) != (1, 1):
        raise PeerError("iperf3 is one stream: --workers 1 --servers 1.")
    if shutil.which("iperf3") is None:
        raise PeerError("iperf3 is not installed: apt-get install iperf3.")
    port = str(free_port())
    with processes() as started:
        started.start("server", ["iperf3", "-s", "-1", "-B", HOST, "-p", port, "--forceflush"])
        # A connection made to find out whether it listens would be its one test.
        started.wait_until(lambda: READY in started.log("server"), READY_S, "iperf3's server")
        command = ["iperf3", "-c", HOST, "-p", port, "-J", "-l", LENGTH, "-C", "cubic"]
        command += ["-t", str(max(round(options.seconds), 1)), *(["--bidir"] if bidir else [])]
        started.start("client", command)
        started.wait(["client"], options.patience_s)
        return result_of(json.loads(started.log("client")))


def main() -> None:
    """The command line."""
    made = parser("iperf3, one stream of TCP over loopback")
    made.set_defaults(workers=1)
    made.add_argument("--bidir", action="store_true", help="both ways at once")
    parsed = made.parse_args()
    report(lambda: run(options_of(parsed), parsed.bidir))


if __name__ == "__main__":
    main()
