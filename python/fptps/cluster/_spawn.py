"""Becomes another program, one that ends when the process that started it does.

Run as a script, with no other import of the package: `python _spawn.py PARENT PROGRAM ARGUMENTS...`. The tie to the
parent outlasts the exec. A function between fork and exec would do the same, but is not safe with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replaces this process."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the tie was made
        os._exit(128 + signal.SIGKILL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"fptps: cannot run {program[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
