"""Python processes that have PyTorch imported from their start: importing it takes longer than most tests.

A server, started by `python warm.py serve SOCKET`, imports it once, when the first process is wanted, and forks each
process from itself. `python -S warm.py run ARGUMENTS` is such a process, like `python ARGUMENTS`: it hands its
arguments, environment, folder and standard streams to the server, and ends as the forked process does. When it is
killed, so is the forked process.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

SOCKET = "WARM_SOCKET"
PYTHON = [sys.executable, "-S", __file__, "run"]
"""The command line of a process, before its arguments: a script, or -m and a module."""


@contextmanager
def serving(folder):
    """Runs a server that ends with this process, however that ends."""
    path = str(folder / "warm")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(100)
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    os.environ[SOCKET] = path
    try:
        yield
    finally:
        server.communicate()


def run(arguments):
    """The process that others see: the forked one's exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[SOCKET])
        socket.send_fds(server, [b"\n"], [0, 1, 2])
        server.sendall(json.dumps([arguments, dict(os.environ), os.getcwd()]).encode() + b"\n")
        code = int(server.recv(100) or 1)
    if code < 0:
        if code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def serve(listener):
    """Forks a process for each connection, until standard input ends. In each it returns the request and streams."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ, None)
    selector.register(0, selectors.EVENT_READ, None)
    children = {}  # the process id and its pidfd, by connection
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                os._exit(0)
            if key.fileobj is listener:
                connection, _ = listener.accept()
                request, streams = received(connection)
                import_all()
                child = os.fork()
                if child == 0:
                    return request, streams
                for stream in streams:
                    os.close(stream)
                children[connection] = child, os.pidfd_open(child)
                selector.register(connection, selectors.EVENT_READ, connection)
                selector.register(children[connection][1], selectors.EVENT_READ, connection)
            elif key.data in children:
                connection = key.data
                child, ended = children[connection]
                if key.fileobj is connection:
                    os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                with suppress(OSError):
                    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                selector.unregister(connection)
                selector.unregister(ended)
                del children[connection]
                connection.close()
                os.close(ended)


def received(connection):
    """What run() sent."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as lines:
        return json.loads(lines.readline()), streams


def import_all():
    """What takes long. Nothing that starts a thread."""
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401 - the first step of an optimizer would import it

    import fptps  # noqa: F401

    gc.freeze()


def become(request, streams):
    """Is `python ARGUMENTS` from now on."""
    arguments, environment, folder = request
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=True)
    sys.path[0] = folder if arguments[0] == "-m" else str(Path(arguments[0]).parent)
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    code = 0
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()  # as Python does
        sys.excepthook(*sys.exc_info())
        code = 1
    leave(code)


def leave(code):
    """Ends the process, but does not free PyTorch's modules: that takes longer than some tests."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(run(sys.argv[2:]))
    become(*serve(socket.socket(fileno=int(sys.argv[2]))))
