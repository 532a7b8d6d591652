"""The machine's limits: epoll.c (TCP over loopback) and ring.c (shared memory), compiled where that is needed.

python -m benchmarks.peers.native epoll --workers 1 --servers 1 [--one-way] [--check]
python -m benchmarks.peers.native ring --workers 1 --servers 1 [--one-way] [--check]

--one-way: the server answers each tensor with 8 bytes, and only the bytes to it count.
--check: each iteration sends other bytes, and compares what the server got; slow.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .common import BUILD, PeerError, report
from .processes import last_line, processes

HERE = Path(__file__).parent
PROGRAMS = ("epoll", "ring")


def compiled(program: str) -> Path:
    """The program, compiled anew if a source is newer."""
    binary = BUILD / program
    sources = [HERE / f"{program}.c", HERE / "traffic.c", HERE / "traffic.h"]
    if binary.exists() and all(binary.stat().st_mtime > source.stat().st_mtime for source in sources):
        return binary
    compiler = os.environ.get("CC", "cc").split()
    if shutil.which(compiler[0]) is None:
        raise PeerError(f"the C compiler {compiler[0]} is not installed: apt-get install gcc libc6-dev.")
    BUILD.mkdir(parents=True, exist_ok=True)
    # Two that compile at once do not see each other's half.
    half = BUILD / f"{program}.{os.getpid()}"
    command = [*compiler, "-O2", "-std=c11", "-Wall", "-Wextra", "-o", str(half), *map(str, sources[:2])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise PeerError(f"{' '.join(command)} failed:\n{done.stdout}")
    half.replace(binary)
    return binary


def run(program: str, arguments: list[str]) -> dict[str, Any]:
    """What the program prints. It ends by itself: it has an alarm."""
    binary = compiled(program)
    with processes() as started:
        started.start(program, [str(binary), *arguments])
        started.wait([program], float("inf"))
        result: dict[str, Any] = json.loads(last_line(started.log(program)))
        return result


def main() -> None:
    """The command line."""
    made = argparse.ArgumentParser(description="The machine's limits for the traffic of one worker and one server")
    made.add_argument("program", choices=PROGRAMS)
    parsed, arguments = made.parse_known_args()
    report(lambda: run(parsed.program, arguments))


if __name__ == "__main__":
    main()
