"""Stats: the counters of a node."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ._session import Session


@dataclass(frozen=True)
class Stats:
    """What this process has counted since it joined its cluster. A worker that runs alone sends nothing: 0 there."""

    tensors: int
    """Tensors that are declared."""

    rounds: int
    """Rounds that are complete on this worker, of all tensors together. Every init() is one too."""

    steps: int
    """Steps of the training loop: rounds since init(), divided by the tensor count; 0 without set_tensor_count()."""

    bytes_pushed: int
    """Bytes of the arrays that were pushed, as they are in memory."""

    bytes_pulled: int
    """Bytes of the sums that arrived, and of rows of tables. A sum counts once, however many pulls receive it."""

    plan: int
    """Number of the plan by which nodes divide the summing. It grows with each change; 0 at the start."""

    shares: dict[str, float]
    """The part of the summing that each node does under that plan: {"server 0": 0.75, "worker 1": 0.25}."""

    lanes: int
    """Threads that send, receive and sum, each with its own connections; 0 for a worker that runs alone."""

    link_rate: int
    """Bits per second that this node's link sends, headers of Ethernet and TCP left out, as measured while packets to
    all other nodes waited for it; 0: not known, since they have not, or because measurements differed."""

    bytes_sent: int
    """Bytes of payload that were sent to other nodes. A worker that sums for others sends sums, too."""

    bytes_received: int
    """Bytes of payload that were received from other nodes."""

    probe_bytes: int
    """Bytes that were sent to other hosts at the start to measure the links. No other counter includes them."""

    packets_sent: int
    """Packets that were sent to other nodes."""

    packets_received: int
    """Packets that were received from other nodes."""

    packets_local: int
    """Packets that this node handed to itself, since it sums that part of a tensor: they use no network."""

    writes: int
    """System calls that sent data. packets_sent / writes is the number of packets that travel together."""

    reads: int
    """System calls that received data."""

    wakeups: int
    """Times that a lane which slept was woken."""

    rejected: int
    """Connections to the data port that were refused: strangers, another FPTPS_TOKEN, or a handshake that took too
    long."""

    malformed: int
    """Connections that were closed because of a packet that makes no sense: another version, or a bug."""

    dropped: int
    """Requests to send packets to a node whose connection had ended. 0 unless a node was lost."""

    acks: int
    """Packets that were sent only to acknowledge others, with FPTPS_RECOVERY=1. No other counter includes them."""

    resumed: int
    """Times that a broken connection with another node was made again, with FPTPS_RECOVERY=1."""

    rejected_messages: int
    """Messages of fptps.ps that members of the cluster sent and that make no sense."""

    wait_s: float
    """Seconds that threads of this process have waited in Ticket.result(), init(), barrier() and their like, summed
    over the threads."""


def read(session: Session) -> Stats:
    """The counters of a node."""
    return Stats(**json.loads(session.core.stats(session.usable())), wait_s=session.waited)
