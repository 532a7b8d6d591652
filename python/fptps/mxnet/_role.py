"""The process of a server or scheduler that was started with a worker's program, as MXNet's launchers do."""

from __future__ import annotations

import os
import sys

from .._node import serve


def serve_if_asked() -> None:
    """If DMLC_ROLE is "server" or "scheduler": runs that node until its cluster has ended, and then ends the process.

    MXNet does the same while it is imported, with a server that does not know fptps's protocol. So fptps.mxnet has to
    be imported before it.
    """
    role = os.environ.get("DMLC_ROLE")
    if role in ("server", "scheduler"):
        sys.exit(serve(role))
