"""The picture of docs/balance.md.

go run ./gocore/balance/figure | python -m benchmarks.balance docs/balance/shares.png
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from matplotlib import pyplot

from .plots import save


def panes(lines: list[str]) -> list[dict[str, list[float]]]:
    """The columns of each table of CSV; a line that begins with a letter names the columns of a new one."""
    tables: list[dict[str, list[float]]] = []
    for row in csv.reader(lines):
        if row[0][0].isalpha():
            tables.append({name: [] for name in row})
        else:
            for column, value in zip(tables[-1].values(), row):
                column.append(float(value))
    return tables


def draw(servers: dict[str, list[float]], slow: dict[str, list[float]], path: Path) -> None:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for name, style in (("only servers", "s--"), ("only workers", "^--"), ("best shares", "o-")):
        left.plot(servers["servers"], servers[name], style, label=f"{name} sum" if "only" in name else name)
    left.set(
        ylim=(0, 4.2),
        xlabel="servers",
        ylabel="time of a round, in models over a link",
        title="8 workers, equal links",
    )
    left.legend()
    for name, label in (
        ("server", "each server"),
        ("another worker", "each other worker"),
        ("slow worker", "this worker"),
    ):
        right.plot(slow["link"], slow[name], label=f"share of {label}")
    right.set(ylim=(0, 0.5), xlabel="uplink of one worker, of the others' links", ylabel="share of the summing")
    right.set_title("4 workers, 2 servers")
    times = right.twinx()
    times.plot(slow["link"], slow["equal shares"], "k:", label="time, equal shares")
    times.plot(slow["link"], slow["best shares"], "k--", label="time, best shares")
    times.set(ylim=(0, 10), ylabel="time of a round, in models over a full link")
    lines = right.get_lines() + times.get_lines()
    right.legend(lines, [str(line.get_label()) for line in lines], fontsize=8)
    save(figure, path)


if __name__ == "__main__":
    left_pane, right_pane = panes(sys.stdin.read().splitlines())
    draw(left_pane, right_pane, Path(sys.argv[1]))
