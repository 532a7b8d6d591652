"""The tables of docs/performance.md about trainings with PyTorch, from the file of `python -m benchmarks.training`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import summary
from .names import BACKEND, FORWARD, GLOO, HOOK, NONE, PLAIN

SYSTEMS = (GLOO, HOOK, BACKEND, NONE, FORWARD)
"""The columns of the tables."""


class Trained(NamedTuple):
    """The median figures of a model by a system on a cluster, over the rounds."""

    iteration_ms: float
    cpu_ms: float
    idle_share: float
    bound_ms: float | None
    against_gloo: float | None
    """Samples per second divided by those of DDP over Gloo in the same round and the same processes; their median."""


Trainings = dict[tuple[str, str, str], Trained]
"""By cluster, model and system."""


def trainings(samples: Sequence[dict[str, Any]]) -> Trainings:
    """The medians of all samples."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for sample in samples:
        rows = sample["figures"]["trainings"]
        gloo = {row["model"]: row["iteration_ms"] for row in rows if row["system"] == GLOO}
        for row in rows:
            own = {**row, "against_gloo": summary.ratio(gloo.get(row["model"]), row.get("iteration_ms"))}
            found.setdefault((sample["run"], row["model"], row["system"]), []).append(own)
    return {key: median_of(rows) for key, rows in found.items()}


def median_of(rows: Sequence[dict[str, Any]]) -> Trained:
    """Of several rounds."""
    medians: list[Any] = [summary.median(rows, name) for name in Trained._fields]
    return Trained(*medians)


def clusters(of: Trainings) -> Iterator[tuple[str, str, dict[str, Trained]]]:
    """The systems of each cluster and model, without MXNet's and without the runs of one process alone."""
    for cluster, model in dict.fromkeys((cluster, model) for cluster, model, _ in of):
        systems = {system: each for (*key, system), each in of.items() if key == [cluster, model]}
        if GLOO in systems:
            yield cluster, model, systems


def time_rows(of: Trainings) -> Iterable[list[str]]:
    """Iteration times."""
    for cluster, model, systems in clusters(of):
        times = [summary.rounded(systems[name].iteration_ms if name in systems else None, 0) for name in SYSTEMS]
        yield [cluster, model, summary.rounded(systems[GLOO].bound_ms, 0), *times]


def target_rows(of: Trainings) -> Iterable[list[str]]:
    """What the targets are about. The processor limits where it has no time left."""
    for cluster, model, systems in clusters(of):
        ours = systems[FORWARD]
        cells = [summary.rounded(summary.ratio(ours.iteration_ms, ours.bound_ms), 2)]
        cells += [
            summary.rounded(systems[name].against_gloo if name in systems else None, 2)
            for name in (FORWARD, HOOK, BACKEND)
        ]
        yield [
            cluster,
            model,
            *cells,
            *(f"{systems[name].cpu_ms:.0f}" for name in (GLOO, FORWARD)),
            f"{ours.idle_share:.0%}",
        ]


def alone(samples: Sequence[dict[str, Any]]) -> str:
    """The processor time of one process alone with DistributedOptimizer, compared with plain PyTorch's: "+1.2%"."""
    shares = []
    for sample in samples:
        cpu = {row["system"]: row["cpu_ms"] for row in sample["figures"]["trainings"]}
        if PLAIN in cpu:
            shares.append(cpu[FORWARD] / cpu[PLAIN] - 1)
    return f"{statistics.median(shares):+.1%}" if shares else "-"


TIME_HEADERS = ("cluster", "model", "bound ms", *(f"{name}, ms" for name in SYSTEMS))
TARGET_HEADERS = (
    "cluster",
    "model",
    "against the bound",
    "against DDP, gloo",
    "DDP, fptps's hook",
    "DDP, fptps's backend",
    "CPU ms, gloo",
    "CPU ms",
    "processors idle",
)
