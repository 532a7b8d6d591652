"""The scheduler's process: `fptps scheduler`, or `python -m fptps.scheduler`."""

from __future__ import annotations

import sys

from ._node import serve


def main(
    host: str | None = None,
    port: int | None = None,
    num_workers: int | None = None,
    num_servers: int | None = None,
) -> int:
    """Runs the scheduler until its cluster has ended, and returns the process's exit code.

    It gives the nodes their ids, leads their barriers, and tells them of deaths; no tensor passes through it.
    The arguments go before DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and DMLC_NUM_SERVER in the
    environment. Exit codes: 0 if all nodes left in good order, 1 (with a line on stderr) if one was lost or the node
    could not join, 128 + n if signal n ended it.
    """
    return serve("scheduler", host, port, num_workers, num_servers)


if __name__ == "__main__":
    sys.exit(main())
