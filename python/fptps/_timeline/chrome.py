"""The file of a timeline: Chrome's trace format in JSON, which Perfetto opens.

The parts are in it, too, for `fptps timeline`.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from .packets import CONTRIBUTION, SUM, Way, ways
from .part import NO_TENSOR, Kind, Part, decode
from .steps import steps_of
from .trace import Node, Trace, merge

PARTS: Final = "fptpsParts"
"""The key of the file's object that holds the parts."""

STEPS, OPERATIONS, CALLER, SUMS = range(1, 5)
"""The tracks of a node, by the number of their thread; those of links follow."""
LINKS: Final = 10

TICK_NS: Final = 1000
"""The length of a slice for something that happens at a moment: a flow has to begin and end in slices."""

Json = dict[str, Any]


def write(path: Path, parts: list[Part]) -> None:
    """Writes the file of a timeline."""
    packed = [base64.b64encode(zlib.compress(part.encode(), 1)).decode() for part in parts]
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms",\n"traceEvents": [\n')
        for i, event in enumerate(events(merge(parts))):
            file.write((",\n" if i else "") + json.dumps(event))
        file.write(f'\n],\n"{PARTS}": {json.dumps(packed)}}}\n')


def read(path: Path) -> list[Part]:
    """The parts in the file of a timeline; ValueError if it is none, OSError if it cannot be read."""
    try:
        packed = json.loads(path.read_text(encoding="utf-8"))[PARTS]
        return [decode(zlib.decompress(base64.b64decode(part)), str(path)) for part in packed]
    except (KeyError, TypeError, zlib.error, json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(f"{path} is no timeline that fptps has written, or it is cut") from None


def events(trace: Trace) -> Iterator[Json]:
    """The events of the file: a process for each node; tracks of steps, operations, the caller, sums and links."""
    for pid, node in enumerate(trace.nodes, 1):
        yield from _names(pid, node, trace)
        yield from _steps(pid, node)
        yield from _operations(pid, node, trace)
        yield from _waits(pid, node, trace)
        yield from _counters(pid, node, trace)
    yield from _packets(trace)


def _us(ns: float) -> float:
    return float(ns) / 1000


def _names(pid: int, node: Node, trace: Trace) -> Iterator[Json]:
    head = node.part.head
    where = f"{head['host_name']}, pid {head['pid']}"
    if not node.aligned:
        where += "; CLOCK NOT ALIGNED: its times begin at 0, compare them with no other node's"
    elif node.uncertainty:
        where += f"; its times are right to ±{node.uncertainty / 1000:.0f} us"
    if head["lost"]:
        where += f"; {head['lost']} events before were overwritten"
    threads = {STEPS: "steps", CALLER: "the program waits", SUMS: "sums"} if node.role == "worker" else {SUMS: "sums"}
    for peer, number in _links(node).items():
        threads[number] = f"to {trace.name(peer)}"
        threads[number + 1] = f"from {trace.name(peer)}"
    yield _meta("process_name", pid, 0, name=f"{node.name} ({where})")
    yield _meta("process_sort_index", pid, 0, sort_index=pid)
    for tid, name in threads.items():
        yield _meta("thread_name", pid, tid, name=name)
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)


def _meta(what: str, pid: int, tid: int, **args: Any) -> Json:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _links(node: Node) -> dict[int, int]:
    """The track of packets to each peer; that of packets from it is the next one."""
    kinds = (Kind.QUEUED, Kind.WRITTEN, Kind.READ, Kind.SUM_QUEUED, Kind.SUM_WRITTEN, Kind.SUM_READ)
    peers = sorted({int(peer) for peer in node.of(*kinds)["peer"]})
    return {peer: LINKS + 2 * i for i, peer in enumerate(peers)}


def _slice(name: str, pid: int, tid: int, begin: float, end: float, **args: Any) -> Json:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": _us(begin), "dur": _us(end - begin), "args": args}


def _steps(pid: int, node: Node) -> Iterator[Json]:
    for step in steps_of(node):
        yield _slice(f"step {step.number}", pid, STEPS, step.begin, step.end)


def _operations(pid: int, node: Node, trace: Trace) -> Iterator[Json]:
    """Operations overlap: each is an asynchronous slice, from the call to the end."""
    called: dict[tuple[int, int], Any] = {}
    for e in node.of(Kind.CALLED, Kind.DONE):
        key = (int(e["tensor"]), int(e["round"]))
        if e["kind"] == Kind.CALLED:
            called[key] = e
        elif key in called:
            begin = called.pop(key)
            name = trace.tensors.get(key[0], f"tensor {key[0]}")
            about = {"round": key[1], "bytes": int(begin["bytes"]), "priority": int(begin["packet"].astype("i4"))}
            shared = {"cat": "operation", "name": name, "id": f"{key[0]}.{key[1]}", "pid": pid, "tid": OPERATIONS}
            yield {"ph": "b", "ts": _us(begin["time"]), "args": about, **shared}
            yield {"ph": "e", "ts": _us(e["time"]), **shared}


def _waits(pid: int, node: Node, trace: Trace) -> Iterator[Json]:
    """What the program's threads have waited for. Several may wait at once, so that these are asynchronous, too."""
    for i, e in enumerate(node.of(Kind.WAITED)):
        tensor = int(e["tensor"])
        name = "other" if tensor == NO_TENSOR else trace.tensors.get(tensor, f"tensor {tensor}")
        shared = {"cat": "wait", "name": f"waits for {name}", "id": f"w{i}", "pid": pid, "tid": CALLER}
        yield {"ph": "b", "ts": _us(e["time"]), **shared}
        yield {"ph": "e", "ts": _us(e["time"]) + int(e["bytes"]), **shared}
    for e in node.of(Kind.MISSING):
        name = f"waits for {trace.name(int(e['peer']))}"
        about = {"tensor": trace.tensors.get(int(e["tensor"]), int(e["tensor"])), "round": int(e["round"])}
        yield {"ph": "i", "s": "p", "name": name, "pid": pid, "tid": SUMS, "ts": _us(e["time"]), "args": about}


def _counters(pid: int, node: Node, trace: Trace) -> Iterator[Json]:
    """Rates of links, and the use of processors. A counter keeps its value until the next: after a sample comes 0."""
    units = {
        Kind.SENT: ("Mbit/s to {}", 8.0),
        Kind.RECEIVED: ("Mbit/s from {}", 8.0),
        Kind.PROCESSOR: ("processors in use", 1.0),
        Kind.LOOP: ("busiest thread of the data plane", 1.0),
    }
    ends: dict[str, float] = {}
    samples = node.of(*units)
    for e in samples:
        text, factor = units[Kind(e["kind"])]
        name, begin = text.format(trace.name(int(e["peer"]))), _us(e["time"])
        if name in ends and ends[name] + 1 < begin:
            yield _counter(name, pid, ends[name], 0.0)
        yield _counter(name, pid, begin, int(e["bytes"]) * factor / max(1, int(e["packet"])))
        ends[name] = begin + int(e["packet"])
    for name, end in ends.items():
        yield _counter(name, pid, end, 0.0)


def _counter(name: str, pid: int, ts: float, value: float) -> Json:
    return {"ph": "C", "name": name, "pid": pid, "ts": ts, "args": {"value": round(value, 3)}}


@dataclass
class _Stop:
    """A packet was seen at a moment: on which track, and what was done with it there."""

    pid: int
    tid: int
    time: int
    done: str
    way: Way
    end: float = 0.0


def _packets(trace: Trace) -> Iterator[Json]:
    """The packets of the sample on their ways: a short slice for each event, with flows from the contribution to its
    sum, and from the sum's last contribution to each worker."""
    pids = {node.id: pid for pid, node in enumerate(trace.nodes, 1)}
    tracks = {node.id: _links(node) for node in trace.nodes}
    journeys: list[tuple[str, list[_Stop]]] = []
    completed: dict[tuple[int, int, int, int], _Stop] = {}
    all_ = ways(trace)
    for way in all_:
        if way.what == CONTRIBUTION:
            stops = list(_stops(way, pids, tracks))
            journeys.append((CONTRIBUTION, stops))
            if way.completed:
                completed[way.tensor, way.round, way.packet, way.receiver] = stops[-1]
    slices = [stop for _, stops in journeys for stop in stops]
    for way in all_:
        if way.what == SUM:
            stops = list(_stops(way, pids, tracks))
            slices += stops
            last = completed.get((way.tensor, way.round, way.packet, way.sender))
            journeys.append((SUM, stops if last is None else [last, *stops]))
    _end(slices)
    for stop in slices:
        tensor = trace.tensors.get(stop.way.tensor, f"tensor {stop.way.tensor}")
        name = f"{tensor}, packet {stop.way.packet} {stop.done}"
        yield _slice(name, stop.pid, stop.tid, stop.time, stop.end, round=stop.way.round, bytes=stop.way.bytes)
    for number, (what, stops) in enumerate(journeys):
        for i, stop in enumerate(stops if len(stops) > 1 else []):
            phase = "s" if i == 0 else "f" if i == len(stops) - 1 else "t"
            flow = {"ph": phase, "cat": what, "name": what, "id": number, "pid": stop.pid, "tid": stop.tid}
            yield {**flow, "ts": _us(stop.time), **({"bp": "e"} if phase == "f" else {})}


def _stops(way: Way, pids: dict[int, int], tracks: dict[int, dict[int, int]]) -> Iterator[_Stop]:
    if way.written is not None:
        yield _Stop(pids[way.sender], tracks[way.sender][way.receiver], way.written, "written", way)
    if way.read is not None:
        yield _Stop(pids[way.receiver], tracks[way.receiver][way.sender] + 1, way.read, "read", way)
    if way.summed is not None:
        done = "summed: its sum is complete" if way.completed else "summed"
        yield _Stop(pids[way.receiver], SUMS, way.summed, done, way)


def _end(stops: list[_Stop]) -> None:
    """Slices of a track must not overlap: each is TICK_NS long, or ends with the next one's beginning."""
    tracks: dict[tuple[int, int], list[_Stop]] = defaultdict(list)
    for stop in stops:
        tracks[stop.pid, stop.tid].append(stop)
    for track in tracks.values():
        track.sort(key=lambda stop: stop.time)
        for stop, after in zip_longest(track, track[1:]):
            stop.end = stop.time + TICK_NS if after is None else min(stop.time + TICK_NS, after.time)
