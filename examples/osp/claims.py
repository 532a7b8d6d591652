"""What the comparison was to show, and what it does show: each claim with its figures, and whether it holds."""

from __future__ import annotations

from runs import Run
from tabulate import tabulate

NEVER = float("inf")


def claims(runs: dict[str, Run]) -> str:
    """A table in Markdown. runs: by the names of reproduce.COMPARED."""
    local, osp, losp = runs["localSGD"], runs["OSP"], runs["LOSP"]
    rows = [
        row("the worst run's error in %, at most 2", 100 * max(1 - accuracy(run) for run in runs.values()), 2),
        row("OSP's seconds to 97 %, below localSGD's", seconds_to_97(osp), seconds_to_97(local)),
        row("OSP's seconds waited per round, below 0.1 of localSGD's", wait(osp), 0.1 * wait(local)),
        row("OSP's accuracy at the end, at most LOSP's", accuracy(osp), accuracy(losp)),
        row("OSP's mean accuracy over the second half, at most LOSP's", second_half(osp), second_half(losp)),
    ]
    for bits, most in ((8, 0.27), (16, 0.52)):
        quantised = runs[f"DQLOSP-{bits}"]
        for direction in ("workers_to_ps", "ps_to_workers"):
            part = per_round(quantised, direction) / per_round(losp, direction)
            rows.append(
                row(f"DQLOSP's bytes {direction.replace('_', ' ')} per round at {bits} bits, of LOSP's", part, most)
            )
        off = abs(accuracy(quantised) - accuracy(losp))
        rows.append(row(f"DQLOSP's accuracy at {bits} bits, distance from LOSP's in points", 100 * off, 0.5))
    return tabulate(rows, headers=("claim", "measured", "bound", "holds"), tablefmt="github", disable_numparse=True)


def row(claim: str, measured: float, bound: float) -> tuple[str, str, str, str]:
    return claim, f"{measured:.4g}", f"{bound:.4g}", "yes" if measured <= bound and measured < NEVER else "**no**"


def seconds_to_97(run: Run) -> float:
    return run.first("elapsed_s", 0.97) or NEVER


def wait(run: Run) -> float:
    return run.per_round("waited_s")


def accuracy(run: Run) -> float:
    """At the end, on the whole test set: all runs have done the same iterations, but for a part of a round."""
    value = run.summary["test_accuracy"]
    assert isinstance(value, float)
    return value


def second_half(run: Run) -> float:
    """Of the rounds in it, at the same iterations in all runs: one round's model alone may be a lucky one."""
    scores = [a for i, a in zip(*run.curve("iterations", "test_accuracy")) if i > run.config["all_iterations"] / 2]
    return sum(scores) / len(scores)


def per_round(run: Run, direction: str) -> float:
    value = run.summary[f"bytes_{direction}"] / run.summary["rounds"]
    assert isinstance(value, float)
    return value
