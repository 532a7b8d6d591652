"""From samples to a table: the order of the runs, medians, ratios. Nothing here runs or measures anything."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Figures = Mapping[str, Any]
"""What a runner prints: the keys of peers.common.Result. A figure that it does not have is None or missing."""

GOODPUT: Final = "goodput_mb_s_per_worker"
FIGURES: Final = (GOODPUT, "cpu_s_per_gb", "p50_us", "p99_us")
HEADERS: Final = (
    "scenario",
    "who",
    "MB/s per worker",
    "least",
    "most",
    "CPU s/GB",
    "p50 us",
    "p99 us",
    "goodput x",
    "p50 x",
)


class Turn(NamedTuple):
    """One run."""

    round: int
    who: str


@dataclass(frozen=True)
class Row:
    """Medians of one contestant in one scenario."""

    scenario: str
    who: str
    samples: int
    medians: dict[str, float | None]
    goodput_least: float
    goodput_most: float
    goodput_ratio: float | None
    """How many times the goodput of this one the reference has."""
    p50_ratio: float | None
    """How many times the p50 of the reference this one has. In both ratios more than 1 is better for the reference."""


def turns(contestants: Sequence[str], rounds: int) -> list[Turn]:
    """Everyone once a round, so that a change of the machine's load meets all alike; each round begins with another,
    so that nobody always follows the same one."""
    order = []
    for number in range(rounds):
        first = number % len(contestants)
        order += [Turn(number, who) for who in (*contestants[first:], *contestants[:first])]
    return order


def median(samples: Sequence[Figures], figure: str) -> float | None:
    """Of those samples that have it."""
    values = [float(sample[figure]) for sample in samples if sample.get(figure) is not None]
    return statistics.median(values) if values else None


def ratio(above: float | None, below: float | None) -> float | None:
    """None where it makes no sense."""
    return above / below if above is not None and below else None


def rows(scenario: str, samples: Mapping[str, Sequence[Figures]], reference: str) -> list[Row]:
    """One for each contestant that has samples. Ratios are those of medians."""
    medians = {who: {figure: median(of, figure) for figure in FIGURES} for who, of in samples.items() if of}
    base: Mapping[str, float | None] = medians.get(reference, {})
    made = []
    for who, own in medians.items():
        goodputs = [float(sample[GOODPUT]) for sample in samples[who]]
        made.append(
            Row(
                scenario=scenario,
                who=who,
                samples=len(goodputs),
                medians=own,
                goodput_least=min(goodputs),
                goodput_most=max(goodputs),
                goodput_ratio=ratio(base.get(GOODPUT), own[GOODPUT]),
                p50_ratio=ratio(own["p50_us"], base.get("p50_us")),
            )
        )
    return made


def shown(value: float | None, digits: int) -> str:
    """A cell."""
    return "-" if value is None else f"{value:.{digits}f}"


def cells(row: Row) -> list[str]:
    """A line of the table, under HEADERS."""
    own = row.medians
    return [
        row.scenario,
        row.who,
        shown(own[GOODPUT], 0),
        shown(row.goodput_least, 0),
        shown(row.goodput_most, 0),
        shown(own["cpu_s_per_gb"], 3),
        shown(own["p50_us"], 1),
        shown(own["p99_us"], 1),
        shown(row.goodput_ratio, 2),
        shown(row.p50_ratio, 2),
    ]
