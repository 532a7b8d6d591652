"""The scheduler's process: `fptps scheduler`, or `python -m fptps.scheduler`."""

from __future__ import annotations

import sys

from ._node import serve


def main(
    host: str | None = None,
    port: int | None = None,
    num_workers: int | None = None,
    num_servers: int | None = None,
    quiet: bool = False,
) -> int:
    """Runs the scheduler until its cluster has ended, and returns the process's exit code.

    On stderr it prints where it listens and for which nodes it waits, each node that asks to join with its address, and
    all nodes with their ranks when they have joined, unless quiet; after 15 s the log says which nodes are missing.

    It gives the nodes their ids, runs their barriers, and reports deaths to them; no tensor passes through it.
    The arguments override DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and DMLC_NUM_SERVER in the
    environment. Exit codes: 0 if all nodes left in good order, 1 (with a line on stderr) if one was lost or the node
    could not join, 128 + n if signal n ended it.
    """
    return serve("scheduler", host, port, num_workers, num_servers, quiet)


if __name__ == "__main__":
    sys.exit(main())
