"""Measures fptps on links: use of the links, latency of urgent tensors, iteration times against the bound.

It also measures the machine's limits: stalls of the CPU, and iperf3 on the same links.

python -m benchmarks.shaped --output build/benchmarks/shaped.json      # root, or user namespaces; more than an hour

Every run is a cluster of real processes in benchmarks.testbed's network, started as a user starts it; in the runs named
"rate given" alone, FPTPS_LINK_RATE is set on each node. docs/testbed.md says how to read "sends".
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from tqdm import tqdm

from . import stillness, summary
from .compare import ROOT, commit, machine
from .testbed import TestBed, why_not
from .testbed.usage import thinned, use_of

RATE: Final = "1gbit"
"""Of the links, where a run's name has no other."""
SCALES: Final = {RATE: "0.1", "200mbit": "0.05", "100mbit": "0.02"}
"""Of the trainers' tensors, by the rate of the links. Below 1 Gbit/s two cores have time left, up to 8x8 nodes."""
RATE_GIVEN: Final = ", rate given"
"""Suffix of the names of runs whose nodes have FPTPS_LINK_RATE."""
PROFILES: Final = ROOT / "benchmarks" / "profiles"


@dataclass(frozen=True)
class Run:
    """One program on a cluster."""

    name: str
    workers: int
    servers: int
    arguments: tuple[str, ...]
    """Arguments of `python -m`. "@worker:1" is replaced by that node's address."""
    rate: str = RATE
    """Of all nodes' links."""
    rate_given: bool = False
    """Whether FPTPS_LINK_RATE is set on each node."""
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for all processes."""
    serve: tuple[str, ...] = ()
    """The command of the scheduler and of the servers, if they are not fptps's."""


def bench(*arguments: str) -> tuple[str, ...]:
    """The arguments of a benchmark of fptps."""
    return ("fptps", "bench", *arguments, "--json")


def trainer(model: str, workers: int, servers: int, mode: str = "packet", rate: str = RATE) -> Run:
    """A simulated trainer. With tensors of a tenth of their size 1 Gbit/s acts like 10 Gbit/s."""
    arguments = bench("trainer", "--profile", str(PROFILES / f"{model}.json"), "--scale", SCALES[rate], "--link", rate)
    if mode != "packet":
        arguments += ("--mode", mode)
    return Run(trainer_name(model, f"{workers}x{servers}", mode, rate), workers, servers, arguments, rate)


def trainer_name(model: str, size: str, mode: str = "packet", rate: str = RATE) -> str:
    """The name of a trainer's run."""
    return f"trainer {model} {size} {mode}" + suffix(rate)


def suffix(rate: str) -> str:
    """Of the names of runs on links of this rate."""
    return "" if rate == RATE else f", {rate}"


def push_pull(workers: int, servers: int) -> Run:
    """All tensors of an iteration at once, 64 MiB a worker."""
    return Run(f"push_pull {workers}x{servers}", workers, servers, bench("push_pull", "--seconds", "4"))


def preempt(workers: int, servers: int, rate: str = RATE, bulk: str = "64MB") -> Run:
    """Successive urgent tensors of 16 KiB, alone and with bulk in flight."""
    arguments = bench("preempt", "--link", rate, "--bulk", bulk)
    return Run(f"preempt {workers}x{servers}{suffix(rate)}", workers, servers, arguments, rate)


def with_rate_given(run: Run) -> Run:
    """The same run with the link's rate set on every node, as if a network card reported it."""
    return replace(run, name=f"{run.name}{RATE_GIVEN}", rate_given=True)


def iperf3() -> Run:
    """The cost of the bytes alone: one stream each way between two nodes."""
    arguments = ("benchmarks.peers.iperf3", "--bidir", "--seconds", "4", "--between", "@worker:1")
    return Run("iperf3", 2, 0, arguments)


SIZES: Final = ((1, 1), (2, 2), (4, 4), (8, 8))
ALL_MODELS: Final = ("resnet50", "vgg16", "alexnet", "bert_base")


class Training(NamedTuple):
    """Simulated trainings on a cluster."""

    size: tuple[int, int]
    rate: str
    models: tuple[str, ...]

    @property
    def cluster(self) -> str:
        """Workers x servers."""
        return f"{self.size[0]}x{self.size[1]}"


TRAININGS: Final = (
    Training((2, 2), RATE, ALL_MODELS),
    Training((4, 4), RATE, ALL_MODELS),
    Training((4, 4), "200mbit", ALL_MODELS),
    Training((8, 8), "200mbit", ALL_MODELS),
    Training((16, 16), "100mbit", ("vgg16",)),
)
PREEMPTIONS: Final = (
    *(preempt(*size) for size in ((1, 1), (4, 1), (4, 4))),
    *(preempt(*size, "200mbit", "16MB") for size in ((1, 1), (4, 1))),
)


def both(runs: Iterable[Run]) -> Iterator[Run]:
    """Each run, and after it the same with the rate given."""
    for run in runs:
        yield run
        yield with_rate_given(run)


RUNS: Final = (
    *(push_pull(*size) for size in SIZES),
    iperf3(),
    *both(PREEMPTIONS),
    *both(trainer(model, *each.size, rate=each.rate) for each in TRAININGS for model in each.models),
    *(trainer(model, 2, 2, mode) for mode in ("message", "partitioned", "fifo") for model in ("resnet50", "vgg16")),
)


@dataclass
class Shaped:
    """All measurements: the content of the JSON file."""

    date: str
    machine: dict[str, Any]
    commit: str
    stillness: list[dict[str, float]] = field(default_factory=list)
    """Before and after the runs; see stillness.py."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """run, rate (of the links), environment (variables beside those of `fptps run`), command, figures, use (the mean
    use of each link while in use) and link (seconds, bytes that worker 0 has sent)."""

    def write(self, path: Path) -> None:
        """Writes all samples so far."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def sample(run: Run) -> dict[str, Any]:
    """Runs it once; returns the sample."""
    out, err = io.StringIO(), io.StringIO()
    with TestBed(run.workers, run.servers, run.rate, give_rates=run.rate_given) as bed:
        arguments = [bed.address(each[1:]) if each.startswith("@") else each for each in run.arguments]
        command = [run.python, "-m", *arguments]
        code = bed.run(command, run.environment, out, err, serve=run.serve)
        samples = thinned(bed.record.samples)
    if code != 0:
        raise click.ClickException(f"{run.name}: exit code {code}: {err.getvalue()[-2000:]}")
    return {
        "run": run.name,
        "workers": run.workers,
        "servers": run.servers,
        "rate": run.rate,
        "environment": {**run.environment, **({"FPTPS_LINK_RATE": run.rate} if run.rate_given else {})},
        "command": " ".join(["python", "-m", *arguments]).replace(f"{ROOT}/", ""),
        "figures": last_json(out.getvalue()),
        "use": {str(link): round(use_of(samples, link).mean_use, 4) for link in samples[-1].rates},
        "link": [
            (round(s.time, 3), sum(n for link, n in s.carried.items() if str(link) == "worker:0 sends"))
            for s in samples
        ],
    }


def last_json(text: str) -> dict[str, Any]:
    """The figures in the output of a cluster."""
    line = [line for line in text.splitlines() if line.startswith("[worker 0] {")][-1]
    figures: dict[str, Any] = json.loads(line.partition(" ")[2].partition(" ")[2])
    return figures


def median(samples: Sequence[dict[str, Any]], run: str, figure: str) -> float | None:
    """Of a figure of a run; None where it was not measured."""
    return summary.median([sample["figures"] for sample in samples if sample["run"] == run], figure)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--run", "names", multiple=True, help="Only runs whose name has this in it; repeatable.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file.")
def main(names: tuple[str, ...], rounds: int, output: Path | None) -> None:
    """Measure fptps on shaped links."""
    if (reason := why_not()) is not None:
        raise click.ClickException(reason)
    now = datetime.now(timezone.utc)
    runs = [run for run in RUNS if not names or any(name in run.name for name in names)]
    if shutil.which("iperf3") is None:
        click.echo("iperf3 is not installed, and left out: apt-get install iperf3", err=True)
        runs = [run for run in runs if run.name != "iperf3"]
    path = output or ROOT / "build" / "benchmarks" / f"shaped-{now:%Y-%m-%dT%H-%M-%S}.json"
    measure(runs * rounds, now, path, brief)


def measure(runs: Sequence[Run], now: datetime, path: Path, brief: Callable[[dict[str, Any]], str]) -> None:
    """Makes all runs in their order, and writes the JSON file after each; brief: what to print of a run's figures."""
    shaped = Shaped(now.isoformat(timespec="seconds"), machine(), commit())
    path.parent.mkdir(parents=True, exist_ok=True)
    shaped.stillness.append(stillness.measure())
    with tqdm(runs, file=sys.stderr) as bar:
        for run in bar:
            bar.set_description(run.name)
            begin = time.monotonic()
            found = sample(run)
            shaped.samples.append(found)
            shaped.write(path)
            bar.write(f"{run.name}: {brief(found['figures'])}  ({time.monotonic() - begin:.0f} s)", file=sys.stderr)
    shaped.stillness.append(stillness.measure())
    shaped.write(path)
    click.echo(f"Every sample: {path}")


def brief(figures: dict[str, Any]) -> str:
    """The most important figures."""
    wanted = ("goodput_mb_s_per_worker", "cpu_s_per_gb", "alone", "with_bulk", "link_share", "iteration_ms", "ratio")
    return "  ".join(f"{name} {figures[name]}" for name in wanted if figures.get(name) is not None)


if __name__ == "__main__":
    main()
