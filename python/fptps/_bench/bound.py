"""A lower bound on the time of an iteration: Mercury's optimum, which no schedule of the same transfers beats.

Time 0 is the start of the backward pass. A layer's gradients may be sent from the end of its backward step on, and the
lowest layer that may be sent has the whole link, preempting others at once. Packets are infinitely small: each sum
returns the moment it is complete. Layers run forward in order, each as soon as its own sums have arrived.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

from .profile import Layer

PAYLOAD: Final = 1448 / 1514
"""Fraction of an Ethernet frame that is payload, with TCP's timestamps."""


def payload_rate(link: float) -> float:
    """Payload in bytes per second and direction of a link with the given rate in bits per second."""
    return link / 8 * PAYLOAD


def model_rate(workers: int, servers: int, payload: float) -> float:
    """Bytes per second at which a worker's gradients can be sent while their sums are received.

    payload: bytes per second and direction of each node's link. The summing is divided so that no division is faster:
    over the servers if there are as many as workers, else over workers too. For W workers and S servers the busiest
    links then carry 2 W (W - 1) / (W^2 + S (W - 2)) times the gradients (docs/balance.md).
    """
    if workers == 1:
        return payload if servers else math.inf  # without servers nothing leaves the process
    return payload * min(1.0, (workers**2 + servers * (workers - 2)) / (2 * workers * (workers - 1)))


def iteration_s(layers: Sequence[Layer], rate: float) -> float:
    """Seconds from the start of a backward pass to the end of the forward pass that follows it."""
    arrived = arrivals(layers, rate)
    end = sum(layer.backward_s for layer in layers)
    for layer, arrival in zip(layers, arrived):
        end = max(end, arrival) + layer.forward_s
    return end


def arrivals(layers: Sequence[Layer], rate: float) -> list[float]:
    """When each layer's sums are complete, in seconds from the start of the backward pass."""
    gradients = []  # (time from which it may be sent, layer), the last layer first
    clock = 0.0
    for index in reversed(range(len(layers))):
        clock += layers[index].backward_s
        gradients.append((clock, index))
    left = [layer.nbytes / rate for layer in layers]  # seconds on the link
    arrived = [0.0] * len(layers)
    waiting: list[int] = []  # a heap: the lowest layer first
    for (now, index), (until, _) in zip(gradients, [*gradients[1:], (math.inf, -1)]):
        heapq.heappush(waiting, index)
        while waiting and now < until:
            first = waiting[0]
            if now + left[first] > until:  # a lower layer preempts it
                left[first] -= until - now
                break
            now += left[first]
            arrived[first] = now
            heapq.heappop(waiting)
    return arrived
