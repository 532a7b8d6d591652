"""What `fptps timeline` prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .causes import Analysis
from .part import NO_TENSOR
from .trace import Trace
from .waits import OWN, Piece, What

TENSORS = 5
"""How many tensors are listed."""
CAUSES = 3


def text(trace: Trace) -> str:
    """The report on a trace: the nodes, where the time of a step went, the tensors that were waited for, the causes."""
    return "\n".join(_lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    yield from _nodes(trace)
    analysis = Analysis(trace)
    if not analysis.count:
        yield ""
        yield "No steps are known: two are needed, of workers whose clocks could be compared."
        return
    for section in (_time(analysis), _tensors(analysis), _causes(analysis)):
        yield ""
        yield from section


def _nodes(trace: Trace) -> Iterator[str]:
    for node in trace.nodes:
        notes = [node.part.head["host_name"], f"{len(node.events)} events"]
        if node.part.head["lost"]:
            notes.append(f"{node.part.head['lost']} before were overwritten")
        if not node.aligned:
            notes.append("its clock could not be compared with the scheduler's: it is left out below")
        elif node.uncertainty:
            notes.append(f"its times are right to ±{node.uncertainty / 1000:.0f} us")
        yield f"{node.name}: {', '.join(notes)}"


HEADS = {
    What.COMPUTE: "compute",
    What.DELAYED: "no cpu",
    What.DATA: "idle",
    What.QUEUE: "queue",
    What.LINK: "link",
    What.AGGREGATOR: "aggregator",
    What.CALLER: "caller",
    What.OTHER: "other",
}


def _time(analysis: Analysis) -> Iterator[str]:
    """A line for each worker: how its steps are divided."""
    names = {**{what.value: head for what, head in HEADS.items()}, "worker": "other workers"}
    yield "Where the time of a step went, in ms:"
    yield f"{'':10} {'step':>8} " + " ".join(f"{head:>{max(8, len(head))}}" for head in names.values())
    for worker, pieces in analysis.pieces.items():
        steps = len(analysis.steps[worker])
        if not steps:
            continue
        sums: dict[str, float] = defaultdict(float)
        for piece in pieces:
            theirs = piece.node != worker and piece.what in OWN
            sums["worker" if theirs else piece.what.value] += piece.ns / steps / 1e6
        cells = " ".join(f"{sums[key]:{max(8, len(head))}.1f}" for key, head in names.items())
        yield f"{analysis.trace.name(worker):10} {sum(sums.values()):8.1f} {cells}"
    yield (
        "(compute, no cpu, idle: the program's own time: it runs, waits for a processor, waits for something else.\n"
        "queue: packets wait to be sent. link: they are under way. aggregator: they wait to be summed. caller: the\n"
        "result is there. other workers: these have not pushed yet.)"
    )


def _tensors(analysis: Analysis) -> Iterator[str]:
    """The critical path: the tensors for which the program has waited longest, and what they lacked."""
    waits: dict[int, list[Piece]] = defaultdict(list)
    for _, piece in analysis.all():
        if piece.tensor != NO_TENSOR:
            waits[piece.tensor].append(piece)
    longest = sorted(waits.items(), key=lambda item: -analysis.per_step(item[1]))[:TENSORS]
    yield "The tensors that steps waited for, in ms of a step, and what they lacked most:"
    for tensor, pieces in longest:
        lacked: dict[str, float] = defaultdict(float)
        for piece in pieces:
            lacked[_lack(analysis.trace, piece)] += piece.ns
        most = max(lacked, key=lambda key: lacked[key])
        name = analysis.trace.tensors.get(tensor, f"tensor {tensor}")
        part = lacked[most] / sum(lacked.values())
        yield f"{analysis.per_step(pieces) / 1e6:8.1f}  {name}: {most} ({part:.0%})"


def _lack(trace: Trace, piece: Piece) -> str:
    node = trace.name(piece.node)
    if piece.what in (What.QUEUE, What.LINK):
        stage = "in the queue" if piece.what == What.QUEUE else "on the link"
        return f"{stage} from {node} to {trace.name(piece.receiver)}"
    return {
        What.COMPUTE: f"{node} computes, and has not pushed it",
        What.DELAYED: f"{node} waits for a processor, and has not pushed it",
        What.DATA: f"{node} has not pushed it, and does not compute",
        What.AGGREGATOR: f"in the sums of {node}",
        What.CALLER: f"nothing, {node} has it",
        What.OTHER: "no packet of it is in the sample",
    }[piece.what]


def _causes(analysis: Analysis) -> Iterator[str]:
    causes = analysis.causes()[:CAUSES]
    if not causes:
        yield "Nothing to change: the steps are the program's own computation."
        return
    yield "What to change:"
    for i, cause in enumerate(causes, 1):
        part = cause.ns / analysis.step_ns
        yield f"{i}. {cause.kind}: {cause.where} ({cause.ns / 1e6:.1f} ms of a step, {part:.0%})"
        yield f"   {cause.why[0].upper()}{cause.why[1:]}."
        yield f"   {cause.change[0].upper()}{cause.change[1:]}."
