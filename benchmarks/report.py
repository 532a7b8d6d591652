"""Writes docs/performance.md and its pictures from the files of compare, shaped, uneven and training (benchmarks.*).

python -m benchmarks.report build/benchmarks/{compare,shaped,uneven,training}.json --docs docs
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from tabulate import tabulate

from fptps._bench.bound import payload_rate
from fptps._bench.profile import load

from . import packets, summary, uneven
from .scenarios import FPTPS, FPTPS_TCP, SCENARIOS
from .shaped import PROFILES, RATE, RATE_GIVEN, SCALES, SIZES, TRAININGS, Training, median, trainer_name
from .summary import GOODPUT
from .testbed.quantities import bits
from .training import report as training
from .training.mxnet import report as mxnet

PAYLOAD_MB_S: Final = 1e9 / 8 * 1448 / 1514 / 1e6
"""TCP payload of a link of 1 Gbit/s in one direction, which counts as 100%."""
MODES: Final = ("fifo", "partitioned", "message", "packet")

STILL: Final = ("p99_ms", "p999_ms", "longest_ms")
LIMITS: Final = {FPTPS_TCP: "epoll", FPTPS: "ring"}
"""The program that only copies, over the same carrier."""

Medians = dict[tuple[str, str], dict[str, float | None]]
"""By scenario and system."""


def medians_of(compared: dict[str, Any]) -> Medians:
    """The medians in the file of compare.py."""
    return {(row["scenario"], row["system"]): row["medians"] for row in compared["medians"]}


def ratio(above: float | None, below: float | None) -> str:
    """A cell."""
    return summary.rounded(summary.ratio(above, below), 2)


def figure(medians: Medians, scenario: str, system: str, name: str) -> float | None:
    """One median; None where it was not measured."""
    return medians.get((scenario, system), {}).get(name)


def target_rows(medians: Medians) -> Iterable[list[str]]:
    """fptps's targets relative to its peers, its results, and the machine's limit if known."""

    def row(label: str, mine: str, peer: str, scenario: str, name: str, target: str) -> list[str]:
        own, other = figure(medians, scenario, mine, name), figure(medians, scenario, peer, name)
        limit = ratio(figure(medians, scenario, LIMITS[mine], name), other) if peer != LIMITS[mine] else "1.00"
        return [label, shown(own), shown(other), ratio(own, other), target, limit]

    vans = (("TCP", FPTPS_TCP), ("shared memory", FPTPS))
    yield row("1x1, TCP, MB/s, against epoll.c", FPTPS_TCP, "epoll", "1x1", GOODPUT, ">= 0.95")
    for scenario, peer, faster, cheaper in (
        ("1x1", "MXNet", (">= 3.5", ">= 8"), "<= 0.25"),
        ("4x4", "MXNet", (">= 4", ">= 6"), "<= 0.25"),
        ("2x0", "Gloo", (">= 1.5", ">= 2.5"), "<= 0.5"),
        ("4x0", "Gloo", (">= 1.5", ">= 2.5"), "<= 0.5"),
    ):
        for name, figure_of, targets in (("MB/s", GOODPUT, faster), ("CPU s/GB", "cpu_s_per_gb", (cheaper, cheaper))):
            for (van, system), target in zip(vans, targets):
                label = f"{scenario}, {van}, {name}, against {peer}"
                yield row(label, system, peer.lower(), scenario, figure_of, target)
    for scenario in ("1x1 4 KB", "4x4 4 KB"):
        for van, system in vans:
            yield row(f"{scenario}, {van}, p50 us, against MXNet", system, "mxnet", scenario, "p50_us", "<= 0.4")
    for scenario in (each.name for each in SCENARIOS if each.bench == "kv"):
        for van, system in vans:
            yield row(f"{scenario}, {van}, MB/s, against MXNet", system, "mxnet", scenario, GOODPUT, ">= 1")


def shown(value: float | None) -> str:
    """A cell with three significant digits."""
    if value is None:
        return "-"
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def all_rows(medians: Medians) -> Iterable[list[str]]:
    """All medians of compare.py."""
    for (scenario, system), own in medians.items():
        yield [scenario, system, *(shown(own[name]) for name in (GOODPUT, "cpu_s_per_gb", "p50_us", "p99_us"))]


def link_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """Use of links of 1 Gbit/s, in both directions at once."""
    base = median(samples, "push_pull 2x2", "cpu_s_per_gb")
    sizes = [f"{workers}x{servers}" for workers, servers in SIZES]
    names = [(size + given, f"push_pull {size}{given}", ">= 98%") for size in sizes for given in ("", RATE_GIVEN)]
    names.append(("iperf3, 2 nodes", "iperf3", "-"))
    for label, name, target in names:
        found = [s["figures"][GOODPUT] / 2 / PAYLOAD_MB_S for s in samples if s["run"] == name]
        if found:
            cpu = median(samples, name, "cpu_s_per_gb")
            spread = f"{min(found):.1%} to {max(found):.1%}"
            yield [label, f"{statistics.median(found):.1%}", spread, target, shown(cpu), ratio(cpu, base)]


def preempt_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """Times of an urgent tensor."""
    runs = dict.fromkeys(sample["run"] for sample in samples if sample["run"].startswith("preempt"))
    for run in runs:
        figures = [sample["figures"] for sample in samples if sample["run"] == run]
        times = [
            statistics.median(own[part][name] for own in figures) / 1e3
            for part in ("alone", "with_bulk")
            for name in ("p50_us", "p99_us")
        ]
        share = statistics.median(own["link_share"] for own in figures)
        yield [run.removeprefix("preempt "), *(f"{value:.2f}" for value in times), f"{share:.1%}"]


def still_rows(stillness: Sequence[dict[str, float]]) -> Iterable[list[str]]:
    """How long the machine does not run a thread that never sleeps."""
    for when, found in zip(("before the runs", "after"), stillness):
        yield [when, f"{found['still_share']:.1%}", *(f"{found[name]:.2f}" for name in STILL)]


def wanted(on: Training, model: str) -> float:
    """What iteration / bound may be at most."""
    if on.rate != RATE:
        return 1.10
    return 1.05 if on.size == (2, 2) else 1.15 if model == "resnet50" else 1.06


def ideal_ms(nodes: int, rate: str, model: str) -> float:
    """An iteration of ideal nodes whose packets have their real size."""
    layers = load(PROFILES / f"{model}.json", float(SCALES[rate])).layers
    return packets.ideal_s(layers, nodes, payload_rate(bits(rate))) * 1e3


def trainer_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """Iteration times compared with the bound, and with those of nodes that know their links' rate."""
    for each in TRAININGS:
        for model in each.models:
            name = trainer_name(model, each.cluster, rate=each.rate)
            iteration, bound = median(samples, name, "iteration_ms"), median(samples, name, "bound_ms")
            given = median(samples, name + RATE_GIVEN, "iteration_ms")
            ideal = None if iteration is None else ideal_ms(each.size[0], each.rate, model)
            cells = [median(samples, name, "compute_ms"), bound, ideal, iteration, given]
            yield [
                f"{each.cluster}, {each.rate}",
                model,
                *map(shown, cells),
                ratio(iteration, bound),
                f"<= {wanted(each, model):.2f}",
                ratio(iteration, given),
            ]


def mode_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """The effect of each scheduling mode."""
    for model in ("resnet50", "vgg16"):
        found = [median(samples, f"trainer {model} 2x2 {mode}", "ratio") for mode in MODES]
        yield [model, *(shown(value) for value in found)]


def table(rows: Iterable[list[str]], *headers: str) -> str:
    """A table of the page."""
    return str(tabulate(list(rows), headers, tablefmt="github", disable_numparse=True))


def page(compared: dict[str, Any], shaped: dict[str, Any], changing: dict[str, Any], trained: dict[str, Any]) -> str:
    """The content of docs/performance.md."""
    medians, samples = medians_of(compared), shaped["samples"]
    machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in compared["machine"].items())
    filled = {
        **trained_parts(trained),
        "DATE": compared["date"],
        "COMMIT": compared["commit"],
        "SHAPED_DATE": shaped["date"],
        "SHAPED_COMMIT": shaped["commit"],
        "SHAPED_ROUNDS": str(rounds(samples)),
        "UNEVEN_DATE": changing["date"],
        "UNEVEN_COMMIT": changing["commit"],
        "UNEVEN": table(uneven.rows(changing["samples"]), *uneven.HEADERS),
        "MACHINE": machine,
        "ROUNDS": str(compared["rounds"]),
        "TARGETS": table(target_rows(medians), "figure", "fptps", "peer", "ratio", "wanted", "copying alone"),
        "ALL": table(all_rows(medians), "scenario", "system", "MB/s per worker", "CPU s/GB", "p50 us", "p99 us"),
        "LINKS": table(
            link_rows(samples), "cluster", "of the link", "least to most", "wanted", "CPU s/GB", "against 2x2"
        ),
        "PREEMPT": table(
            preempt_rows(samples), "cluster", "alone p50 ms", "p99 ms", "with bulk p50 ms", "p99 ms", "links full"
        ),
        "STILL": table(
            still_rows(shaped["stillness"]), "idle machine", "stands still", "p99 ms", "p99.9 ms", "longest ms"
        ),
        "TRAINER": table(
            trainer_rows(samples),
            "cluster",
            "model",
            "compute ms",
            "bound ms",
            "simulated, ms",
            "iteration ms",
            "rate given, ms",
            "iteration / bound",
            "wanted",
            "/ rate given",
        ),
        "MODES": table(mode_rows(samples), "model", *MODES),
        "FAILURES": failures(compared),
    }
    return fill((Path(__file__).parent / "performance.md.in").read_text(), filled)


def rounds(samples: Sequence[dict[str, Any]]) -> int:
    """How often everything was measured, at least."""
    counts = Counter(sample["run"] for sample in samples)
    return min(counts.values())


def trained_parts(trained: dict[str, Any]) -> dict[str, str]:
    """The parts of the page about trainings."""
    of = training.trainings(trained["samples"])
    return {
        "TRAINED_DATE": trained["date"],
        "TRAINED_COMMIT": trained["commit"],
        "TRAINED_TARGETS": table(training.target_rows(of), *training.TARGET_HEADERS),
        "TRAINED_TIMES": table(training.time_rows(of), *training.TIME_HEADERS),
        "ALONE": training.alone(trained["samples"]),
        "TRAINED_MXNET": table(mxnet.target_rows(trained["samples"]), *mxnet.TARGET_HEADERS),
    }


def fill(text: str, parts: Mapping[str, str]) -> str:
    """The text with each @NAME@ replaced by its part."""
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


def failures(compared: dict[str, Any]) -> str:
    """The systems that could not be measured, and why."""
    lines = [
        f"- {scenario}: {system} failed {len(reasons)} times, the last time: {reasons[-1]}"
        for scenario, by in compared["failures"].items()
        for system, reasons in by.items()
    ]
    return "\n".join(lines) or "No system failed."


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("compared", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("shaped", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("changing", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("trained", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--docs", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder to write to.")
def main(compared: Path, shaped: Path, changing: Path, trained: Path, docs: Path) -> None:
    """Write performance.md and its pictures."""
    from . import plots  # matplotlib is needed for nothing else

    loopback, links, changes, trainings = (
        json.loads(path.read_text()) for path in (compared, shaped, changing, trained)
    )
    pictures = docs / "performance"
    pictures.mkdir(parents=True, exist_ok=True)
    plots.goodput(loopback, pictures / "goodput.png")
    plots.latency(loopback, pictures / "latency.png")
    plots.link_use(links, pictures / "links.png")
    plots.trainer(links, pictures / "trainer.png")
    plots.trainings(trainings, pictures / "trainings.png")
    (docs / "performance.md").write_text(page(loopback, links, changes, trainings))


if __name__ == "__main__":
    main()
