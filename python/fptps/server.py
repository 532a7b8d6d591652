"""The server's process: `fptps server`, or `python -m fptps.server`."""

from __future__ import annotations

import sys

from ._node import serve


def main(
    host: str | None = None,
    port: int | None = None,
    num_workers: int | None = None,
    num_servers: int | None = None,
) -> int:
    """Runs the server until its cluster has ended, and returns the process's exit code.

    It sums its share of every tensor. host and port are the scheduler's.
    The arguments override DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and DMLC_NUM_SERVER in the
    environment. Exit codes: 0 if all nodes left in good order, 1 (with a line on stderr) if one was lost or the node
    could not join, 128 + n if signal n ended it.
    """
    return serve("server", host, port, num_workers, num_servers)


if __name__ == "__main__":
    sys.exit(main())
