"""Draws the record of a run over time: iterations, waits, the use of the links, and what happened to them.

python -m benchmarks.testbed -n 2 -s 2 --json run.json ... && python -m benchmarks.testbed.plot run.json run.png
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from .director import ITERATION

STEP_S: Final = 0.1
"""The use of a link is drawn for steps of this length."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("record", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
def main(record: Path, picture: Path) -> None:
    """Draw the RECORD that the test bed's --json wrote as a PICTURE (.png, .svg or .pdf)."""
    run = json.loads(record.read_text())
    if "times" not in run:
        raise click.ClickException(f"{record} has no run in it: it was written by --check alone")
    draw(run, picture)


def draw(run: dict[str, Any], picture: Path) -> None:
    """A pane for the iterations, one for what else workers report, one for the links' use."""
    links = [link for link in run["links"] if link["rates"][0] is not None]
    iterations = [span for span in run["spans"] if span["name"] == ITERATION]
    others = [span for span in run["spans"] if span["name"] != ITERATION]
    heights = [3.0] * bool(iterations) + [3.0] * bool(others) + [0.6 + 0.22 * len(links)]
    size = (11, sum(heights) + 0.8 + 0.15 * len(run["events"]))
    figure, panes = pyplot.subplots(
        len(heights), 1, figsize=size, sharex=True, squeeze=False, height_ratios=heights, layout="constrained"
    )
    left = list(panes[:, 0])
    if iterations:
        draw_iterations(left.pop(0), iterations)
    if others:
        draw_waits(left.pop(0), others)
    draw_links(figure, left.pop(0), run["times"], links)
    draw_events(figure, list(panes[:, 0]), run["events"])
    panes[-1, 0].set(xlabel="seconds since the run began", xlim=(0, run["times"][-1]))
    figure.savefig(picture, dpi=110)
    pyplot.close(figure)


def draw_iterations(pane: Any, spans: list[dict[str, Any]]) -> None:
    """How long each iteration of each worker took, from its begin to its end."""
    for rank in sorted({span["rank"] for span in spans}):
        own = sorted((span for span in spans if span["rank"] == rank), key=lambda span: span["number"])
        edges = [*(span["begin"] for span in own), own[-1]["end"]]
        pane.stairs([1e3 * (s["end"] - s["begin"]) for s in own], edges, baseline=None, label=f"worker {rank}")
    pane.set(ylabel="iteration, ms", ylim=(0, None))
    pane.legend(loc="lower right", bbox_to_anchor=(1, 1.04), ncols=8, fontsize=8, frameon=False)


def draw_waits(pane: Any, spans: list[dict[str, Any]]) -> None:
    """How long everything else took, a point for each."""
    for name in sorted({span["name"] for span in spans}):
        own = [span for span in spans if span["name"] == name]
        waits = [1e3 * (span["end"] - span["begin"]) for span in own]
        pane.plot([span["begin"] for span in own], waits, ".", markersize=3, label=name)
    pane.set(ylabel="ms", yscale="log")
    pane.legend(loc="lower right", bbox_to_anchor=(1, 1.04), ncols=8, fontsize=8, frameon=False)


def draw_links(figure: Any, pane: Any, times: list[float], links: list[dict[str, Any]]) -> None:
    """A row for each direction of each link, darker the more of its rate is used."""
    steps = max(1, int(times[-1] / STEP_S))
    edges = [times[-1] * i / steps for i in range(steps + 1)]
    rows = [use_by_step(times, link, edges) for link in links]
    mesh = pane.pcolormesh(edges, range(len(links) + 1), rows, cmap="Blues", vmin=0, vmax=1, rasterized=True)
    names = [f"{link['node']} {'sends' if link['direction'] == 'send' else 'receives'}" for link in links]
    pane.set_yticks([i + 0.5 for i in range(len(links))], names, fontsize=8)
    pane.invert_yaxis()
    figure.colorbar(mesh, ax=pane, label="use of the link", aspect=10, pad=0.01)


def use_by_step(times: list[float], link: dict[str, Any], edges: list[float]) -> list[float]:
    """The part of a link's rate that was used in each step."""
    use = []
    sample = 0
    for end in edges[1:]:
        carried = able = 0.0
        while sample + 1 < len(times) and times[sample + 1] <= end:
            carried += 8 * (link["bytes"][sample + 1] - link["bytes"][sample])
            able += link["rates"][sample] * (times[sample + 1] - times[sample])
            sample += 1
        use.append(carried / able if able else 0.0)
    return use


def draw_events(figure: Any, panes: Sequence[Any], events: list[dict[str, Any]]) -> None:
    """A dashed line for each event, with its number, and above what it was."""
    for number, event in enumerate(events, 1):
        for pane in panes:
            pane.axvline(event["begin"], color="black", linewidth=0.8, linestyle="--")
        panes[0].annotate(
            str(number), (event["begin"], 1.0), xycoords=("data", "axes fraction"), fontsize=8, ha="center", va="bottom"
        )
    texts = [f"{number}: {event['begin']:.2f} s, {event['text']}" for number, event in enumerate(events, 1)]
    if texts:
        figure.suptitle("\n".join(texts), x=0.01, ha="left", fontsize=8)


if __name__ == "__main__":
    main()
