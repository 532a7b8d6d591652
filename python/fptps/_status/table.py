"""The status of a cluster as a page of text for 80 columns and more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Node = dict[str, Any]

FULL: Final = 0.9
"""A link of which so much is used limits the training."""
NOTES: Final = 3
"""How many warnings, and how many deaths, the page shows."""


def page(status: dict[str, Any], height: int | None = None) -> RenderableType:
    """The page; at most so many lines high."""
    head, notes = list(_head(status)), list(_notes(status))
    room = None if height is None else height - len(head) - len(notes) - 2
    nodes, rest = _fit(status["nodes"], room)
    parts: list[RenderableType] = [*map(_line, head)]
    if nodes:
        parts.append(_table(nodes, status["slowest_worker"]))
    if rest:
        parts.append(_line(rest))
    return Group(*parts, *map(_line, notes))


def _line(markup: str) -> Text:
    line = Text.from_markup(markup)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _head(status: dict[str, Any]) -> Iterator[str]:
    """What holds for the whole cluster."""
    workers = [node for node in status["nodes"] if node["role"] == "worker"]
    servers = len(status["nodes"]) - len(workers)
    state = status["state"]
    color = {"running": "green", "ended": "default"}.get(state, "yellow")
    yield (
        f"[bold]cluster at {status['scheduler']}[/]: [{color}]{escape(state)}[/], {_count(len(workers), 'worker')}, "
        f"{_count(servers, 'server')}, plan {status['plan']}"
    )
    waiting = status["waiting"]
    if waiting:
        since = f" for {waiting['seconds']:.0f} s" if waiting["seconds"] is not None else ""
        yield f"[yellow]{waiting['for']} waits{since}; missing: {escape(', '.join(waiting['missing']))}[/]"
    line = ", ".join(_training(workers))
    if line:
        yield line
    if status["slowest_worker"]:
        yield f"[yellow]the others wait for {status['slowest_worker']}, which waits least[/]"
    full = [node["name"] for node in status["nodes"] if _use(node) >= FULL]
    if full:
        more = f" and {len(full) - 3} more" if len(full) > 3 else ""
        yield f"[yellow]links in full use: {', '.join(full[:3])}{more}[/]"


def _training(workers: list[Node]) -> Iterator[str]:
    """How the training proceeds, in clauses."""
    for what in ("step", "round"):
        rates = [node[f"{what}s_per_s"] for node in workers if node[f"{what}s_per_s"] is not None]
        if rates:
            yield f"{_number(max(rates))} {what}s/s"
            break
    pushed = [node["pushed_bits_per_s"] / 8e6 for node in workers if node["pushed_bits_per_s"] is not None]
    if pushed:
        yield f"{_number(sum(pushed) / len(pushed))} MB/s of each worker"
    waits = [node["wait_share"] for node in workers if node["wait_share"] is not None]
    if waits:
        yield f"workers wait {sum(waits) / len(waits):.0%} of the time"


def _table(nodes: list[Node], slowest: str | None) -> Table:
    steps = any(node["steps"] for node in nodes)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("node", no_wrap=True)
    table.add_column("host", no_wrap=True, overflow="ellipsis", max_width=15)
    table.add_column("state", no_wrap=True)
    table.add_column("steps" if steps else "rounds", justify="right", no_wrap=True)
    table.add_column("/s", justify="right", no_wrap=True)
    table.add_column("up bit/s", justify="right", no_wrap=True)
    table.add_column("down bit/s", justify="right", no_wrap=True)
    table.add_column("waits", justify="right", no_wrap=True)
    table.add_column("for", no_wrap=True, overflow="ellipsis", ratio=1)
    for node in nodes:
        table.add_row(*_row(node, steps, node["name"] == slowest))
    return table


def _row(node: Node, steps: bool, slowest: bool) -> Iterator[str]:
    bad = node["state"] in ("silent", "vacant")
    yield f"[yellow]{node['name']}[/]" if slowest else node["name"]
    yield escape(node["address"].rpartition(":")[0])
    yield f"[red]{node['state']}[/]" if bad else f"[green]{node['state']}[/]"
    what = "steps" if steps else "rounds"
    worker = node["role"] == "worker" and node["seconds"] is not None
    yield f"{node[what]:,}" if worker else ""
    yield _number(node[f"{what}_per_s"])
    for way in ("up", "down"):
        yield _rate(node[f"{way}_bits_per_s"], node[f"link_use_{way}"])
    yield "" if node["wait_share"] is None else f"{node['wait_share']:.0%}"
    waiting = node["waiting"]
    yield "" if waiting is None else escape(f"{', '.join(waiting['missing'])} ({waiting['seconds']:.0f} s)")


def _rate(bits: float | None, use: float | None) -> str:
    """ "812M 86%": a rate in bit/s, and how much of the link it takes."""
    if bits is None:
        return ""
    text = _bits(bits)
    if use is None:
        return text
    return f"[red]{text} {use:.0%}[/]" if use >= FULL else f"{text} {use:.0%}"


def _bits(bits: float) -> str:
    for unit in ("", "k", "M", "G"):
        if bits < 999.5 or unit == "G":
            return f"{_number(bits)}{unit}"
        bits /= 1000
    raise AssertionError


def _number(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if number >= 99.5 or number == int(number) else f"{number:.1f}"


def _notes(status: dict[str, Any]) -> Iterator[str]:
    """The last warnings and deaths, the newest first."""
    for death in reversed(status["deaths"][-NOTES:]):
        ago = _ago(status["time"] - death["time"])
        yield f"[red]{death['name']} was lost {ago}[/]: {escape(death['why'])}"
    warned = [node for node in status["nodes"] if node["warning"]]
    for node in sorted(warned, key=lambda node: float(node["warning"]["seconds_ago"]))[:NOTES]:
        yield f"{node['name']}, {_ago(node['warning']['seconds_ago'])}: {escape(node['warning']['text'])}"


def _ago(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def _fit(nodes: list[Node], room: int | None) -> tuple[list[Node], str]:
    """The nodes that fit into so many lines, those first that a reader looks for, in their order; and a line about the
    rest."""
    if room is None or len(nodes) <= room:
        return nodes, ""
    shown = sorted(nodes, key=_interest, reverse=True)[: max(0, room - 1)]
    rest = [node for node in nodes if node not in shown]
    waits = [node["wait_share"] for node in rest if node["wait_share"] is not None]
    text = f"[dim]and {len(rest)} more nodes"
    if waits:
        text += f", whose workers wait {min(waits):.0%} to {max(waits):.0%} of the time"
    return [node for node in nodes if node in shown], text + "[/]"


def _interest(node: Node) -> tuple[bool, bool, float, float]:
    """How much a reader wants to see a node: one that is not well, one that waits for others, a full link, a worker
    that waits little."""
    use = _use(node)
    return (
        node["state"] != "running",
        node["waiting"] is not None,
        use if use >= FULL else 0.0,
        -1.0 if node["wait_share"] is None else 1 - node["wait_share"],
    )


def _use(node: Node) -> float:
    """The part of a node's link that is used, in the direction in which it is more."""
    return max(node["link_use_up"] or 0.0, node["link_use_down"] or 0.0)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
