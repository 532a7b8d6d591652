"""What happens to the training of test_churn.py, and the places where it runs."""

import contextlib
import json
import os
import signal
import sys
import threading
import time

import churn_training
from benchmarks import testbed
from on_testbed import ENVIRONMENT

import fptps

HEARTBEAT_TIMEOUT_S = 8
SETTINGS = {
    "FPTPS_RECOVERY": "1",
    "FPTPS_MAX_WORKERS": "4",
    "PS_HEARTBEAT_INTERVAL": "1",
    "PS_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT_S),
}
MOST = {"worker": 4, "server": 3}
EVENTS = {
    "worker": 6,
    "server": 3,
    "kill": 4,
    "kill server": 3,
    "leave": 2,
    "stop": 3,
    "bury": 0.3,
    "bury server": 0.2,
    "reset": 4,
    "cut": 2,
}
"""What may happen, and how often, one beside the other."""
LONG_S = 1.0
"""A stop or a cut that is longer may leave too little of the 3 s in which a reset connection has to be made again."""
MEND_S = 1.0
"""In that time it is made again, when nothing else happens."""


class OneHost:
    """A cluster on this machine."""

    hosts = ()

    def __init__(self, workers, servers, settings, address, folder, limit_s):
        self._folder = folder
        self._cluster = fptps.LocalCluster(workers, servers, limit_s, settings)
        task = churn_training.note, str(folder), churn_training.train, address, str(folder / "over")
        self._run = self._cluster.start(*task)

    @property
    def processes(self):
        return self._run.processes

    def add(self, role, chance):
        return self._run.add_worker() if role == "worker" else self._run.add_server()

    def outcomes(self):
        """Waits for the end; the outcomes of processes by pid."""
        self._run.outcomes()
        return outcomes_in(self._folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._run.stop()


class ManyHosts:
    """A cluster over TCP between namespaces. Those that come later may share one; then they use shared memory."""

    def __init__(self, workers, servers, settings, address, folder, limit_s):
        self.hosts = [f"worker:{i}" for i in range(workers + 1)] + [f"server:{i}" for i in range(servers + 1)]
        self._folder = folder
        self._deadline = time.monotonic() + limit_s
        self._bed = testbed.TestBed(workers + 1, servers + 1, "1gbit")
        self._supervisor = None
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._train, args=(workers, servers, settings, address))

    def _train(self, workers, servers, settings, address):
        over, program = self._folder / "over", churn_training.__file__
        with (self._folder / "errors").open("w") as err:
            self._bed.run(
                [sys.executable, program, address, str(over), str(self._folder)],
                {**ENVIRONMENT, **settings},
                err=err,
                begin=self._begin,
                workers=workers,
                servers=servers,
                interval_s=5.0,
            )

    def _begin(self, supervisor):
        self._supervisor = supervisor
        self._began.set()

    @property
    def processes(self):
        return list(self._supervisor.processes)

    def add(self, role, chance):
        self._bed.add(role, chance.choice(self.hosts))

    def reset(self, host):
        self._bed.reset(host)

    def cut(self, hosts):
        return self._bed.cut(hosts)

    def outcomes(self):
        self._thread.join(self._deadline - time.monotonic())
        if self._thread.is_alive():
            left = [process.name for process in self.processes if process.returncode is None]
            raise fptps.TimeoutError(f"still running: {left}")
        return outcomes_in(self._folder)

    def __enter__(self):
        self._bed.__enter__()
        self._thread.start()
        self._began.wait()
        return self

    def __exit__(self, *details):
        self._supervisor.stop(signal.SIGTERM)
        self._thread.join(30)
        self._bed.__exit__(*details)
        print((self._folder / "errors").read_text(), file=sys.stderr)


def outcomes_in(folder):
    """What churn_training.note() has noted there, by pid."""
    return {int(file.name): json.loads(file.read_text()) for file in folder.iterdir() if file.name.isdecimal()}


class Churn:
    """Events that happen to a run."""

    def __init__(self, place, chance):
        self.done = dict.fromkeys(EVENTS, 0)
        self.gone = set()  # processes that are on their way out
        self.buried = set()  # of these, the ones that stand still until they are given up
        self._still = set()
        self._place = place
        self._chance = chance
        self._later = []  # (when, what)
        self._cut = None
        self._long_until = 0.0  # a long stop or cut lasts
        self._last_reset = 0.0

    def alive(self, role):
        """The processes of a role that take part."""
        found = [p for p in self._place.processes if p.role == role and p.returncode is None and p not in self.gone]
        return [p for p in found if role == "server" or p.rank is not None]

    def play(self, events):
        """So many events. After that nothing stands still."""
        while sum(self.done.values()) < events:
            self._wait(self._chance.uniform(0, 0.3))
            assert self.alive("worker"), "no worker is left"
            what = self._chance.choices(list(EVENTS), list(EVENTS.values()))[0]
            self.done[what] += self._happens(what)
        while self._later:
            self._wait(0.1)

    def _wait(self, seconds):
        """Lets time pass, and ends stops and cuts."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            due = [each for each in self._later if each[0] <= now]
            self._later = [each for each in self._later if each[0] > now]
            for _, action in due:
                action()
            if now >= end:
                return
            threading.Event().wait(min([end, *(when for when, _ in self._later)]) - now)

    def _happens(self, what):
        """Whether an event is possible now. It happens then."""
        if what in MOST:
            return self._comes(what)
        if what in ("reset", "cut"):
            return bool(self._place.hosts) and getattr(self, f"_{what}s")()
        role = "server" if what.endswith("server") else "worker"
        victims = self.alive(role)
        if role == "worker" and what != "stop" and len(victims) == 1:
            return False
        victims = [each for each in victims if each not in self._still]
        if not victims:
            return False
        victim = self._chance.choice(victims)
        if what == "stop":
            return self._stops(victim)
        self.gone.add(victim)
        if what.startswith("bury"):
            self.buried.add(victim)
            seconds = self._chance.uniform(HEARTBEAT_TIMEOUT_S + 4, 20)
            self._stop(victim, seconds)
        else:
            send(victim, signal.SIGUSR1 if what == "leave" else signal.SIGKILL)
        return True

    def _comes(self, role):
        running = [p for p in self._place.processes if p.role == role and p.returncode is None]
        if len([p for p in running if p not in self.buried]) >= MOST[role]:
            return False
        self._place.add(role, self._chance)
        return True

    def _stop(self, victim, seconds):
        send(victim, signal.SIGSTOP)
        self._still.add(victim)
        self._later.append((time.monotonic() + seconds, lambda: self._wake(victim)))

    def _wake(self, victim):
        self._still.remove(victim)
        send(victim, signal.SIGCONT)

    def _stops(self, victim):
        seconds = self._long_or_short()
        self._stop(victim, seconds)
        return True

    def _long_or_short(self):
        """How long a stop or a cut takes."""
        now = time.monotonic()
        if self._chance.random() < 0.7 or now < self._last_reset + MEND_S or now < self._long_until:
            return self._chance.uniform(0, LONG_S)
        seconds = self._chance.uniform(0, 3)
        self._long_until = now + seconds
        return seconds

    def _resets(self):
        if time.monotonic() < self._long_until:
            return False
        self._place.reset(self._chance.choice(self._place.hosts))
        self._last_reset = time.monotonic()
        return True

    def _cuts(self):
        if self._cut is not None:
            return False
        hosts = self._place.hosts
        self._cut = contextlib.ExitStack()
        self._cut.enter_context(self._place.cut(self._chance.sample(hosts, self._chance.randint(0, len(hosts)))))
        self._later.append((time.monotonic() + self._long_or_short(), self._heal))
        return True

    def _heal(self):
        self._cut.close()
        self._cut = None


def send(process, number):
    """Sends a signal to a process that may have ended: the run has not collected it then."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
