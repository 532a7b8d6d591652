"""Clusters whose processes are programs of the test's choice, for the tests of fptps.ps."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fptps.cluster._commands import HOST, reserved_port

PATIENCE_S = 90
SCHEDULER = [sys.executable, "-m", "fptps", "scheduler"]
SERVER = [sys.executable, "-m", "fptps", "server"]


def environment(port, workers, servers, **settings):
    """What the nodes of a cluster on this machine share."""
    return {
        **os.environ,
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": HOST,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": str(servers),
        "PYTHONPATH": str(Path(__file__).parent),
        **settings,
    }


class Cluster:
    """Its processes: the output and the exit code of each."""

    def __init__(self, folder, settings):
        self._folder = Path(folder)
        self._settings = settings
        self.processes = []

    def start(self, role, command, stdin=subprocess.DEVNULL, **settings):
        """Starts a process; returns its number."""
        number = len(self.processes)
        with open(self._folder / f"{number}.out", "wb") as out, open(self._folder / f"{number}.err", "wb") as err:
            env = {**self._settings, "DMLC_ROLE": role, **settings}
            self.processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=err, stdin=stdin))
        return number

    def output(self, number):
        """What a process has printed."""
        return (self._folder / f"{number}.out").read_text()

    def errors(self, number):
        """What it has logged."""
        return (self._folder / f"{number}.err").read_text()

    def wait(self, *numbers, code=0):
        """Until those have ended, with that exit code."""
        for number in numbers:
            got = self.processes[number].wait(PATIENCE_S)
            assert got == code, f"process {number} ended with {got}:\n{self.all_output()}"

    def start_interactive(self, role, command, **settings):
        """Starts a process that carries out the lines of its stdin; returns its number and its first answer."""
        number = self.start(role, command, stdin=subprocess.PIPE, **settings)
        return number, self.answer(number, 0)

    def command(self, number, line):
        """Sends a process a line, and returns its answer."""
        said = self.output(number).count("\n")
        self.processes[number].stdin.write(f"{line}\n".encode())
        self.processes[number].stdin.flush()
        return self.answer(number, said)

    def command_all(self, numbers, line, answer):
        """Sends several processes a line at once; each has to give that answer. None: does not wait for answers."""
        said = {number: self.output(number).count("\n") for number in numbers}
        for number in numbers:
            self.processes[number].stdin.write(f"{line}\n".encode())
            self.processes[number].stdin.flush()
        for number in numbers:
            assert answer is None or self.answer(number, said[number]) == answer

    def answer(self, number, said):
        """The next output of a process, after so many lines."""
        end = time.monotonic() + PATIENCE_S
        while self.output(number).count("\n") <= said:
            assert self.processes[number].poll() is None, self.all_output()
            assert time.monotonic() < end, self.all_output()
            time.sleep(0.01)
        return json.loads(self.output(number).splitlines()[said])

    def kill(self, number):
        """SIGKILL."""
        self.processes[number].kill()
        self.processes[number].wait(PATIENCE_S)

    def all_output(self):
        """What every process has printed and logged."""
        texts = [f"-- {n}\n{self.output(n)}{self.errors(n)}" for n in range(len(self.processes))]
        return "\n".join(texts)


@contextlib.contextmanager
def cluster(workers, servers, **settings):
    """A cluster without processes yet; none of them outlives it."""
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        made = Cluster(folder, environment(port, workers, servers, **settings))
        try:
            yield made
        finally:
            for process in made.processes:
                process.kill()
                process.wait()
                if process.stdin:
                    process.stdin.close()


def run(workers, servers, *programs, **settings):
    """Runs (role, command) pairs until all have ended well; returns the output and the log of each."""
    with cluster(workers, servers, **settings) as made:
        numbers = [made.start(role, command) for role, command in programs]
        made.wait(*numbers)
        return [(made.output(n), made.errors(n)) for n in numbers]
