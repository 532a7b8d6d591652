"""The table of docs/performance.md about trainings with MXNet, from the file of `python -m benchmarks.training`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ... import summary
from ..names import DIST_SYNC, KVSTORES, MXNET, P3
from .runs import PREFIX

Rows = dict[str, list[dict[str, Any]]]
"""By system: its rows, one for each round."""


def clusters(samples: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, Rows]]:
    """The rows of each cluster and model that all systems have trained."""
    found: dict[tuple[str, str], Rows] = {}
    for sample in samples:
        if sample["run"].startswith(PREFIX):
            for row in sample["figures"]["trainings"]:
                rows = found.setdefault((sample["run"].removeprefix(PREFIX), row["model"]), {})
                rows.setdefault(row["system"], []).append(row)
    for (cluster, model), rows in found.items():
        if all(system in rows for system in KVSTORES):
            yield cluster, model, rows


def faster(rows: Rows, system: str) -> float:
    """Samples per second of fptps.mxnet divided by those of a system in the same round; the median."""
    ratios = [float(other["iteration_ms"] / own["iteration_ms"]) for own, other in zip(rows[MXNET], rows[system])]
    return statistics.median(ratios)


def target_rows(samples: Sequence[dict[str, Any]]) -> Iterable[list[str]]:
    """What the targets are about, times, and processor time."""
    for cluster, model, rows in clusters(samples):
        bound = summary.median(rows[MXNET], "bound_ms")
        times = {system: summary.median(rows[system], "iteration_ms") for system in KVSTORES}
        yield [
            cluster,
            model,
            *(f"{faster(rows, system):.2f}" for system in (DIST_SYNC, P3)),
            summary.rounded(summary.ratio(times[MXNET], bound), 2),
            summary.rounded(bound, 0),
            *(summary.rounded(times[system], 0) for system in KVSTORES),
            *(summary.rounded(summary.median(rows[system], "cpu_ms"), 0) for system in KVSTORES),
            f"{statistics.median(row['idle_share'] for row in rows[MXNET]):.0%}",
        ]


TARGET_HEADERS = (
    "cluster",
    "model",
    f"against {DIST_SYNC}",
    f"against {P3}",
    "against the bound",
    "bound ms",
    *(f"{name}, ms" for name in KVSTORES),
    *(f"CPU ms, {name}" for name in KVSTORES),
    "processors idle",
)
