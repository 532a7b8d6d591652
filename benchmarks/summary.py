"""The order of the runs, and the medians, ratios and table of their samples. Pure: nothing here runs a program."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Figures = Mapping[str, Any]
"""What a runner prints, with the keys of peers.common.Result. An unavailable figure is None or missing."""

GOODPUT: Final = "goodput_mb_s_per_worker"
FIGURES: Final = (GOODPUT, "cpu_s_per_gb", "p50_us", "p99_us")
HEADERS: Final = (
    "scenario",
    "system",
    "MB/s per worker",
    "least",
    "most",
    "CPU s/GB",
    "p50 us",
    "p99 us",
    "goodput x",
    "p50 x",
)


class ScheduledRun(NamedTuple):
    """One run of one system."""

    round: int
    system: str


@dataclass(frozen=True)
class Row:
    """Medians of one system in one scenario."""

    scenario: str
    system: str
    samples: int
    medians: dict[str, float | None]
    goodput_least: float
    goodput_most: float
    goodput_ratio: float | None
    """Goodput of the reference divided by this system's."""
    p50_ratio: float | None
    """p50 of this system divided by the reference's. In both ratios more than 1 means that the reference is better."""


def run_order(systems: Sequence[str], rounds: int) -> list[ScheduledRun]:
    """Each system once a round, so that a change of the machine's load affects all of them. Each round begins with
    another system, so that none always follows the same one."""
    order = []
    for number in range(rounds):
        first = number % len(systems)
        order += [ScheduledRun(number, system) for system in (*systems[first:], *systems[:first])]
    return order


def median(samples: Sequence[Figures], figure: str) -> float | None:
    """The median of a figure over the samples that have it."""
    values = [float(sample[figure]) for sample in samples if sample.get(figure) is not None]
    return statistics.median(values) if values else None


def ratio(above: float | None, below: float | None) -> float | None:
    """The quotient; None if it is undefined."""
    return above / below if above is not None and below else None


def rows(scenario: str, samples: Mapping[str, Sequence[Figures]], reference: str) -> list[Row]:
    """A row for each system with samples. Ratios are ratios of medians."""
    medians = {system: {figure: median(of, figure) for figure in FIGURES} for system, of in samples.items() if of}
    base: Mapping[str, float | None] = medians.get(reference, {})
    made = []
    for system, own in medians.items():
        goodputs = [float(sample[GOODPUT]) for sample in samples[system]]
        made.append(
            Row(
                scenario=scenario,
                system=system,
                samples=len(goodputs),
                medians=own,
                goodput_least=min(goodputs),
                goodput_most=max(goodputs),
                goodput_ratio=ratio(base.get(GOODPUT), own[GOODPUT]),
                p50_ratio=ratio(own["p50_us"], base.get("p50_us")),
            )
        )
    return made


def rounded(value: float | None, digits: int) -> str:
    """A cell of the table."""
    return "-" if value is None else f"{value:.{digits}f}"


def cells(row: Row) -> list[str]:
    """A line of the table; its columns are HEADERS."""
    own = row.medians
    return [
        row.scenario,
        row.system,
        rounded(own[GOODPUT], 0),
        rounded(row.goodput_least, 0),
        rounded(row.goodput_most, 0),
        rounded(own["cpu_s_per_gb"], 3),
        rounded(own["p50_us"], 1),
        rounded(own["p99_us"], 1),
        rounded(row.goodput_ratio, 2),
        rounded(row.p50_ratio, 2),
    ]
