"""Iteration times on links that differ, or change: what the scheduler's plans make of them, against the best plan.

python -m benchmarks.uneven --output build/benchmarks/uneven.json      # root, or user namespaces; some 10 minutes

Each run is a simulated training of vgg16 in benchmarks.testbed's network, started as a user starts it. The bound is
that of `fptps bench trainer`, for the shares of the summing that make a round shortest over the links as they are.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import click
from tabulate import tabulate
from tqdm import tqdm

from fptps._bench.bound import iteration_s, payload_rate
from fptps._bench.profile import Profile, load

from .compare import ROOT, commit, machine
from .shaped import PROFILES, last_json
from .testbed import TestBed, change, plan, why_not
from .testbed.found import INSIST, first_within, phases
from .testbed.quantities import Rate, bits

MODEL: Final = "vgg16"
SCALE: Final = 0.02
"""Of the tensors: at 200 Mbit/s a round then takes half a second, and two cores idle most of the time."""
RATE: Final = "200mbit"
FAST_SCALE: Final = 0.1
FAST_RATE: Final = "1gbit"
SLOW_SCALE: Final = 0.004
SLOW_RATE: Final = "40mbit"
"""With delay and loss: the forwarder that makes them needs a processor at higher rates."""
ITERATIONS: Final = 40
NEAR: Final = 1.05
"""A plan is found when an iteration takes at most this multiple of its bound."""


@dataclass(frozen=True)
class Case:
    """A cluster and its links.

    rates: of those that are not rate; changes: (iteration of worker 0, node, rate); paths: rates between a worker and a
    server, as "worker:0-server:0".
    """

    name: str
    workers: int
    servers: int
    rates: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[tuple[int, str, str], ...] = ()
    delay: str = ""
    loss: str = ""
    rate: str = RATE
    scale: float = SCALE
    paths: Mapping[str, str] = field(default_factory=dict)


FALLS_AND_RISES: Final = ((10, "server:0", "50mbit"), (25, "server:0", RATE))
FAST: Final = ((10, "server:0", "250mbit"), (25, "server:0", FAST_RATE))
SLOWLY: Final = ((10, "server:0", "10mbit"), (25, "server:0", SLOW_RATE))
CASES: Final = (
    Case("2x1", 2, 1),
    Case("3x1", 3, 1),
    Case("4x1", 4, 1),
    Case("4x2", 4, 2),
    Case("4x4", 4, 4),
    Case("4x4, worker 0 at 1/2", 4, 4, {"worker:0": "100mbit"}),
    Case("4x0, worker 0 at 1/2", 4, 0, {"worker:0": "100mbit"}),
    Case("4x0, worker 0 at 1/4", 4, 0, {"worker:0": "50mbit"}),
    Case("4x4, server 0 at 1/4", 4, 4, {"server:0": "50mbit"}),
    Case("4x2, server 0 at 1/4", 4, 2, {"server:0": "50mbit"}),
    Case("4x4, server 0 sends at 1/4", 4, 4, {"server:0": "50mbit,200mbit"}),
    Case("4x4, server 0 receives at 1/4", 4, 4, {"server:0": "200mbit,50mbit"}),
    Case("4x4, servers 0 and 1 at 1/4", 4, 4, {"server:0": "50mbit", "server:1": "50mbit"}),
    Case("4x4, worker 0 to server 0 at 1/8", 4, 4, paths={"worker:0-server:0": "25mbit"}),
    Case("4x2, worker 0 to server 0 at 1/8", 4, 2, paths={"worker:0-server:0": "25mbit"}),
    Case("4x4, server 0 falls to 1/4 and rises", 4, 4, {}, FALLS_AND_RISES),
    Case("4x4, 1 Gbit/s, the same", 4, 4, {}, FAST, rate=FAST_RATE, scale=FAST_SCALE),
    Case("4x4, 40 Mbit/s, the same", 4, 4, {}, SLOWLY, rate=SLOW_RATE, scale=SLOW_SCALE),
    Case("4x4, 40 Mbit/s, the same with 30 ms of delay", 4, 4, {}, SLOWLY, "15ms", "", SLOW_RATE, SLOW_SCALE),
    Case("4x4, 40 Mbit/s, the same with 0.1% of packets lost", 4, 4, {}, SLOWLY, "", "0.1%", SLOW_RATE, SLOW_SCALE),
)


def model_rate(workers: Sequence[Rate], servers: Sequence[Rate], paths: Mapping[int, str] | None = None) -> float:
    """Bytes per second at which gradients can be summed, if the summing is divided so that a round is shortest.

    In a round that takes T seconds for each byte of the model, a server whose link carries c bytes per second can sum
    T c / W of it, and a worker (T c - 1) / (W - 2): it sends what it does not sum, and W - 1 times what it does
    (docs/balance.md). The least T with which all of them sum the whole model is found by halving. paths: by server,
    the rate of its slowest path to a worker. All that a server sums passes there once each way: T p of it at most.
    """
    n = len(workers)
    worker = [min(payload_rate(bits(rate.send)), payload_rate(bits(rate.receive))) for rate in workers]
    server = [min(payload_rate(bits(rate.send)), payload_rate(bits(rate.receive))) / n for rate in servers]
    for number, rate in (paths or {}).items():
        server[number] = min(server[number], payload_rate(bits(rate)))

    def sums(seconds: float) -> float:
        own = sum(min(1.0, (seconds * c - 1) / (n - 2)) if n > 2 else 1.0 for c in worker)
        return own + sum(seconds * c for c in server)

    low = 1 / min(worker)
    high = n * n / min(worker)
    if sums(low) >= 1:
        return 1 / low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if sums(middle) >= 1 else (middle, high)
    return 1 / high


def server_paths(paths: Mapping[str, str]) -> dict[int, str]:
    """The slowest path of each server that has one. Only those between workers and servers have a bound here."""
    slowest: dict[int, str] = {}
    for pair, rate in paths.items():
        server, worker = sorted(pair.split("-"))
        if not (server.startswith("server:") and worker.startswith("worker:")):
            raise ValueError(f"{pair!r}: a worker and a server are expected, as in worker:0-server:0")
        number = int(server.partition(":")[2])
        slowest[number] = min(slowest.get(number, rate), rate, key=bits)
    return slowest


def bounds(case: Case, profile: Profile) -> list[float]:
    """Seconds of an iteration, at least, before the first change and after each change."""
    links = plan(case.workers, case.servers, case.rate, case.rates)
    found = []
    for _, node, rate in ((0, "", ""), *case.changes):
        if node:
            links[node] = Rate.parse(rate)
        workers, servers = (
            [rate for name, rate in links.items() if rate is not None and name.startswith(role)]
            for role in ("worker", "server")
        )
        found.append(iteration_s(profile.layers, model_rate(workers, servers, server_paths(case.paths))))
    return found


def sample(case: Case) -> dict[str, Any]:
    """Runs it once. Of each phase: the bound, the times of its iterations, and those before which the plan changed."""
    out, err = io.StringIO(), io.StringIO()
    path = PROFILES / f"{MODEL}.json"
    profile = load(path, case.scale)
    script = [entry for when, node, rate in case.changes for entry in change(f"iteration:{when}", f"{node}={rate}")]
    delays = {"all": case.delay} if case.delay else {}
    losses = {"all": case.loss} if case.loss else {}
    command = [sys.executable, "-m", "fptps", "bench", "trainer", "--profile", str(path)]
    command += ["--scale", str(case.scale), "--iterations", str(ITERATIONS), "--json"]
    bed = TestBed(
        case.workers,
        case.servers,
        case.rate,
        case.rates,
        delays=delays,
        losses=losses,
        script=script,
        paths=case.paths,
    )
    with bed:
        code = bed.run(command, out=out, err=err)
        found = phases(bed.record.iterations(), bed.record.events)
    if code != 0:
        raise click.ClickException(f"{case.name}: exit code {code}: {err.getvalue()[-2000:]}")
    changes = last_json(out.getvalue())["plan_changes"]
    result, begin = [], 0
    for phase, bound in zip(found, bounds(case, profile)):
        end = begin + len(phase.seconds)
        result.append(
            {
                "bound_ms": round(bound * 1e3, 1),
                "iterations_ms": [round(s * 1e3, 1) for s in phase.seconds],
                "plan_changes": [number - begin for number in changes if begin <= number < end],
            }
        )
        begin = end
    return {"case": case.name, "phases": result}


def row(name: str, phase: Mapping[str, Any]) -> list[str]:
    """A line of the table."""
    times, bound = phase["iterations_ms"], phase["bound_ms"]
    found = first_within(times, NEAR * bound)
    settled = statistics.median(times[INSIST:] or times)
    milliseconds = [f"{each:.0f}" for each in (bound, times[0], settled)]
    changes = ", ".join(map(str, phase["plan_changes"])) or "-"
    return [name, *milliseconds, f"{settled / bound:.2f}", "-" if found == len(times) else str(found), changes]


HEADERS: Final = ("links", "bound ms", "first ms", "settled ms", "settled / bound", "found after", "new plan in")


def rows(samples: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """All phases: times in ms; found after: iterations until three in a row take at most 1.05 times the bound."""
    return [
        row(each["case"] if number == 0 else f"... change {number}", phase)
        for each in samples
        for number, phase in enumerate(each["phases"])
    ]


@dataclass
class Uneven:
    """All measurements: the content of the JSON file."""

    date: str
    machine: dict[str, Any]
    commit: str
    samples: list[dict[str, Any]] = field(default_factory=list)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--case", "names", multiple=True, help="Only cases whose name has this in it; repeatable.")
@click.option("--rounds", default=1, show_default=True, help="Number of times that everything is run.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file.")
def main(names: tuple[str, ...], rounds: int, output: Path | None) -> None:
    """Measure fptps on links that differ, or change."""
    if (reason := why_not()) is not None:
        raise click.ClickException(reason)
    now = datetime.now(timezone.utc)
    path = output or ROOT / "build" / "benchmarks" / f"uneven-{now:%Y-%m-%dT%H-%M-%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = Uneven(now.isoformat(timespec="seconds"), machine(), commit())
    cases = [case for case in CASES if not names or any(name in case.name for name in names)]
    with tqdm(total=rounds * len(cases), file=sys.stderr) as bar:
        for _ in range(rounds):
            for case in cases:
                bar.set_description(case.name)
                file.samples.append(sample(case))
                path.write_text(json.dumps(asdict(file), indent=1) + "\n")
                bar.update()
    click.echo(str(tabulate(rows(file.samples), HEADERS, disable_numparse=True)))
    click.echo(f"Every sample: {path}")


if __name__ == "__main__":
    main()
