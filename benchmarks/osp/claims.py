"""The claims of the papers that the comparison tests: each with its measurement, its bound, and whether it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tabulate import tabulate

from .runs import Run

NEVER = float("inf")


class Claim(NamedTuple):
    """measured <= bound is claimed."""

    text: str
    measured: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound and self.measured < NEVER


def table(links: Mapping[str, Mapping[str, Run]]) -> str:
    """In Markdown, the links side by side. links: by their rate, the runs by the names of reproduce.COMPARED."""
    columns = [claims(runs) for runs in links.values()]
    headers = ["claim"]
    for rate in links:
        headers += [rate, "bound", "holds"]
    rows = []
    for same in zip(*columns):
        row = [same[0].text]
        for claim in same:
            row += [f"{claim.measured:.4g}", f"{claim.bound:.4g}", "yes" if claim.holds else "**no**"]
        rows.append(row)
    return str(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


def claims(runs: Mapping[str, Run]) -> list[Claim]:
    """runs: by the names of reproduce.COMPARED."""
    local, osp, losp = runs["localSGD"], runs["OSP"], runs["LOSP"]
    found = [
        Claim("the worst run's error in %, at most 2", 100 * max(1 - accuracy(run) for run in runs.values()), 2),
        Claim("OSP's seconds to 97 %, below localSGD's", seconds_to_97(osp), seconds_to_97(local)),
        Claim("OSP's seconds waited per round, below 0.1 of localSGD's", waited(osp), 0.1 * waited(local)),
        Claim("OSP's accuracy at the end, at most LOSP's", accuracy(osp), accuracy(losp)),
        Claim("OSP's mean accuracy over the second half, at most LOSP's", second_half(osp), second_half(losp)),
    ]
    for bits, most in ((8, 0.27), (16, 0.52)):
        quantised = runs[f"DQLOSP-{bits}"]
        for direction in ("workers_to_ps", "ps_to_workers"):
            part = per_round(quantised, direction) / per_round(losp, direction)
            text = f"DQLOSP's bytes {direction.replace('_', ' ')} per round at {bits} bits, of LOSP's"
            found.append(Claim(text, part, most))
        distance = 100 * abs(accuracy(quantised) - accuracy(losp))
        found.append(Claim(f"DQLOSP's accuracy at {bits} bits, distance from LOSP's in points", distance, 0.5))
    return found


def seconds_to_97(run: Run) -> float:
    return run.first("elapsed_s", 0.97) or NEVER


def waited(run: Run) -> float:
    return run.per_round("waited_s")


def accuracy(run: Run) -> float:
    """At the end, on the whole test set: all runs have done the same iterations, but for a part of a round."""
    return float(run.summary["test_accuracy"])


def second_half(run: Run) -> float:
    """The mean over the rounds in it, at the same iterations in all runs: a single round's model may be a lucky one."""
    scores = [a for i, a in zip(*run.curve("iterations", "test_accuracy")) if i > run.config["all_iterations"] / 2]
    return sum(scores) / len(scores)


def per_round(run: Run, direction: str) -> float:
    return float(run.summary[f"bytes_{direction}"] / run.summary["rounds"])
