"""One worker of a LocalCluster: `python -m fptps.cluster._rank TASK RESULT` runs the function that the file TASK holds.

It leaves (value, exception, traceback, left open) in the file RESULT, whole or not at all: the last tells whether a
KVWorker was not closed.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from .._session import left_open


def main(source: Path, target: Path) -> None:
    """Calls the function and returns its outcome."""
    try:
        path, task = cloudpickle.loads(source.read_bytes())
        sys.path[:] = path  # where the function's modules are
        function, arguments = cloudpickle.loads(task)
        value = function(*arguments)
        pickled = cloudpickle.dumps((value, None, None, left_open()))
    except BaseException as error:
        pickled = cloudpickle.dumps((None, _picklable(error), traceback.format_exc(), left_open()))
        raise
    finally:
        whole = target.with_suffix(".part")
        whole.write_bytes(pickled)
        whole.rename(target)


def _picklable(error: BaseException) -> Any | None:
    """The exception, if it survives the way to the other process."""
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return None
    return error


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
