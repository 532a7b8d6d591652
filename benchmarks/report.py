"""docs/performance.md and its pictures, from what compare.py and shaped.py have measured.

python -m benchmarks.report build/benchmarks/compare.json build/benchmarks/shaped.json --docs docs
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import click
from tabulate import tabulate

from . import summary
from .scenarios import FPTPS, FPTPS_TCP, SCENARIOS
from .shaped import ALL_MODELS, SIZES, median
from .summary import GOODPUT

PAYLOAD_MB_S: Final = 1e9 / 8 * 1448 / 1514 / 1e6
"""What 1 Gbit/s carries of TCP payload, in one direction: 100%."""
MODES: Final = ("fifo", "partitioned", "message", "packet")

Medians = dict[tuple[str, str], dict[str, float | None]]
"""By scenario and contestant."""


def medians_of(compared: dict[str, Any]) -> Medians:
    """Those of compare.py's file."""
    return {(row["scenario"], row["who"]): row["medians"] for row in compared["medians"]}


def ratio(above: float | None, below: float | None) -> str:
    """A cell."""
    return summary.shown(summary.ratio(above, below), 2)


def figure(medians: Medians, scenario: str, who: str, name: str) -> float | None:
    """One median; None where it was not measured."""
    return medians.get((scenario, who), {}).get(name)


def target_rows(medians: Medians) -> Iterable[list[str]]:
    """What fptps is to reach beside its peers, and what it reached."""

    def row(what: str, mine: str, peer: str, scenario: str, name: str, target: str) -> list[str]:
        own = figure(medians, scenario, mine, name)
        other = figure(medians, scenario, peer, name)
        return [what, shown(own), shown(other), ratio(own, other), target]

    yield row("1x1, TCP, MB/s, against epoll.c", FPTPS_TCP, "epoll", "1x1", GOODPUT, ">= 0.95")
    for scenario, tcp, shm in (("1x1", ">= 3.5", ">= 8"), ("4x4", ">= 4", ">= 6")):
        yield row(f"{scenario}, TCP, MB/s, against MXNet", FPTPS_TCP, "mxnet", scenario, GOODPUT, tcp)
        yield row(f"{scenario}, shared memory, MB/s, against MXNet", FPTPS, "mxnet", scenario, GOODPUT, shm)
        yield row(f"{scenario}, TCP, CPU s/GB, against MXNet", FPTPS_TCP, "mxnet", scenario, "cpu_s_per_gb", "<= 0.25")
        yield row(
            f"{scenario}, shared memory, CPU s/GB, against MXNet", FPTPS, "mxnet", scenario, "cpu_s_per_gb", "<= 0.25"
        )
    for scenario in ("2x0", "4x0"):
        yield row(f"{scenario}, TCP, MB/s, against Gloo", FPTPS_TCP, "gloo", scenario, GOODPUT, ">= 1.5")
        yield row(f"{scenario}, shared memory, MB/s, against Gloo", FPTPS, "gloo", scenario, GOODPUT, ">= 2.5")
        yield row(f"{scenario}, TCP, CPU s/GB, against Gloo", FPTPS_TCP, "gloo", scenario, "cpu_s_per_gb", "<= 0.5")
        yield row(
            f"{scenario}, shared memory, CPU s/GB, against Gloo", FPTPS, "gloo", scenario, "cpu_s_per_gb", "<= 0.5"
        )
    for scenario in ("1x1 4 KB", "4x4 4 KB"):
        yield row(f"{scenario}, TCP, p50 us, against MXNet", FPTPS_TCP, "mxnet", scenario, "p50_us", "<= 0.4")
        yield row(f"{scenario}, shared memory, p50 us, against MXNet", FPTPS, "mxnet", scenario, "p50_us", "<= 0.4")
    for scenario in (each.name for each in SCENARIOS if each.bench == "kv"):
        for van, who in (("TCP", FPTPS_TCP), ("shared memory", FPTPS)):
            yield row(f"{scenario}, {van}, MB/s, against MXNet", who, "mxnet", scenario, GOODPUT, ">= 1")


def shown(value: float | None) -> str:
    """A cell: three digits that count."""
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def all_rows(medians: Medians) -> Iterable[list[str]]:
    """Everything that compare.py measured."""
    for (scenario, who), own in medians.items():
        yield [scenario, who, *(shown(own[name]) for name in (GOODPUT, "cpu_s_per_gb", "p50_us", "p99_us"))]


def link_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """How full links of 1 Gbit/s get, in both directions at once."""
    base = median(samples, "push_pull 2x2", "cpu_s_per_gb")
    for workers, servers in SIZES:
        name = f"push_pull {workers}x{servers}"
        found = [s["figures"][GOODPUT] / 2 / PAYLOAD_MB_S for s in samples if s["run"] == name]
        if found:
            cpu = median(samples, name, "cpu_s_per_gb")
            yield [
                f"{workers}x{servers}",
                f"{statistics.median(found):.1%}",
                f"{min(found):.1%} to {max(found):.1%}",
                ">= 98%",
                shown(cpu),
                ratio(cpu, base),
            ]


def preempt_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """What an urgent tensor takes."""
    for sample in samples:
        if sample["run"].startswith("preempt"):
            own = sample["figures"]
            times = [own[part][name] for part in ("alone", "with_bulk") for name in ("p50_us", "p99_us")]
            yield [sample["run"].split()[1], *(f"{value / 1e3:.2f}" for value in times), f"{own['link_share']:.1%}"]


def trainer_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """Iterations against the optimum."""
    for size in ("2x2", "4x4"):
        for model in ALL_MODELS:
            name = f"trainer {model} {size} packet"
            iteration, bound = median(samples, name, "iteration_ms"), median(samples, name, "bound_ms")
            yield [
                size,
                model,
                shown(median(samples, name, "compute_ms")),
                shown(bound),
                shown(iteration),
                ratio(iteration, bound),
                "<= 1.05",
            ]


def mode_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """What each idea is worth."""
    for model in ("resnet50", "vgg16"):
        found = [median(samples, f"trainer {model} 2x2 {mode}", "ratio") for mode in MODES]
        yield [model, *(shown(value) for value in found)]


def page(compared: dict[str, Any], shaped: dict[str, Any]) -> str:
    """docs/performance.md."""
    medians, samples = medians_of(compared), shaped["samples"]
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in compared["machine"].items())

    def table(rows: Iterable[list[str]], *headers: str) -> str:
        return str(tabulate(list(rows), headers, tablefmt="github", disable_numparse=True))

    parts = (Path(__file__).parent / "performance.md.in").read_text()
    filled = {
        "DATE": compared["date"],
        "COMMIT": compared["commit"],
        "SHAPED_DATE": shaped["date"],
        "MACHINE": machine,
        "ROUNDS": str(compared["rounds"]),
        "TARGETS": table(target_rows(medians), "what", "fptps", "peer", "ratio", "wanted"),
        "ALL": table(all_rows(medians), "scenario", "who", "MB/s per worker", "CPU s/GB", "p50 us", "p99 us"),
        "LINKS": table(
            link_rows(samples), "cluster", "of the link", "least to most", "wanted", "CPU s/GB", "against 2x2"
        ),
        "PREEMPT": table(
            preempt_rows(samples), "cluster", "alone p50 ms", "p99 ms", "with bulk p50 ms", "p99 ms", "links full"
        ),
        "TRAINER": table(
            trainer_rows(samples), "cluster", "model", "compute ms", "bound ms", "iteration ms", "ratio", "wanted"
        ),
        "MODES": table(mode_rows(samples), "model", *MODES),
        "FAILURES": failures(compared),
    }
    for name, text in filled.items():
        parts = parts.replace(f"@{name}@", text)
    return parts


def failures(compared: dict[str, Any]) -> str:
    """Who could not be measured, and why."""
    lines = [
        f"- {scenario}: {who} failed {len(reasons)} times, the last time: {reasons[-1]}"
        for scenario, by in compared["failures"].items()
        for who, reasons in by.items()
    ]
    return "\n".join(lines) or "Nobody failed."


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("compared", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("shaped", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--docs", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder to write to.")
def main(compared: Path, shaped: Path, docs: Path) -> None:
    """Write performance.md and its pictures."""
    from . import plots  # matplotlib is only there for this

    loopback, links = json.loads(compared.read_text()), json.loads(shaped.read_text())
    pictures = docs / "performance"
    pictures.mkdir(parents=True, exist_ok=True)
    plots.goodput(loopback, pictures / "goodput.png")
    plots.latency(loopback, pictures / "latency.png")
    plots.link_use(links, pictures / "links.png")
    plots.trainer(links, pictures / "trainer.png")
    (docs / "performance.md").write_text(page(loopback, links))


if __name__ == "__main__":
    main()
