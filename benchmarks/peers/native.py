"""Compiles and runs epoll.c (TCP over loopback) and ring.c (shared memory), which measure the machine's limits.

python -m benchmarks.peers.native epoll --workers 1 --servers 1 [--one-way] [--check]
python -m benchmarks.peers.native ring --workers 4 --servers 4 [--one-way] [--check]

With several workers and servers, one pair per worker runs at the same time: they move as many bytes as a cluster of
that size, and sum nothing.
--one-way: the server answers each tensor with 8 bytes; only the bytes to the server count.
--check: each iteration sends different bytes, and compares what the server received; slow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .common import BUILD, PeerError, positive, report
from .processes import last_line, processes

HERE = Path(__file__).parent
PROGRAMS = ("epoll", "ring")


def compiled(program: str) -> Path:
    """The path of the program; compiles it if a source is newer."""
    binary = BUILD / program
    sources = [HERE / f"{program}.c", HERE / "traffic.c", HERE / "traffic.h"]
    if binary.exists() and all(binary.stat().st_mtime > source.stat().st_mtime for source in sources):
        return binary
    compiler = os.environ.get("CC", "cc").split()
    if shutil.which(compiler[0]) is None:
        raise PeerError(f"the C compiler {compiler[0]} is not installed: apt-get install gcc libc6-dev.")
    BUILD.mkdir(parents=True, exist_ok=True)
    # Compile to a private file: another run may compile at the same time.
    half = BUILD / f"{program}.{os.getpid()}"
    command = [*compiler, "-O2", "-std=c11", "-Wall", "-Wextra", "-o", str(half), *map(str, sources[:2])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise PeerError(f"{' '.join(command)} failed:\n{done.stdout}")
    half.replace(binary)
    return binary


def run(program: str, pairs: int, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs the program in pairs processes at once; returns their merged result. Each ends by its own alarm."""
    binary = compiled(program)
    names = [f"{program} {pair}" for pair in range(pairs)]
    with processes() as started:
        for name in names:
            started.start(name, [str(binary), *arguments])
        started.wait(names, float("inf"))
        return together([json.loads(last_line(started.log(name))) for name in names])


def together(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each figure over all pairs; checked if all were."""
    figures: dict[str, Any] = {
        name: statistics.fmean(result[name] for result in results) for name in results[0] if name != "checked"
    }
    return {**figures, "checked": all(result["checked"] for result in results)}


def main() -> None:
    """The command line."""
    made = argparse.ArgumentParser(description="The machine's limits for the traffic of workers and servers")
    made.add_argument("program", choices=PROGRAMS)
    made.add_argument("--workers", type=positive, default=1)
    made.add_argument("--servers", type=positive, default=1, help="as many as workers")
    parsed, arguments = made.parse_known_args()
    if parsed.workers != parsed.servers:
        made.error("this traffic is of pairs: give --servers the number of --workers")
    report(lambda: run(parsed.program, parsed.workers, arguments))


if __name__ == "__main__":
    main()
