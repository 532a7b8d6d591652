"""How short an iteration can be: Mercury's optimum, which no schedule of the same transfers beats.

Time 0 is the start of the backward pass. A layer's gradients may travel from the end of its backward step on, and the
lowest layer that may travel has the link to itself, at once. Packets are infinitely small: the sum of one comes back
the moment it is complete. Layers run forward in their order, each as soon as its own sums are here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

from .profile import Layer

PAYLOAD: Final = 1448 / 1514
"""Of the bytes of an Ethernet frame, with TCP's timestamps."""


def payload_rate(link: float) -> float:
    """Bytes of payload per second and direction of a link of so many bits per second."""
    return link / 8 * PAYLOAD


def model_rate(workers: int, servers: int, payload: float) -> float:
    """Bytes per second at which a worker's gradients go out while their sums come back.

    payload: bytes per second and direction of each node's link. Tensors are spread evenly over the servers, whose links
    carry all workers' gradients; without servers over the workers, of which each sends the others their parts of its
    gradients, and the sums of its own part.
    """
    if servers:
        return payload * min(1.0, servers / workers)
    if workers == 1:
        return math.inf  # nothing leaves the process
    return payload * workers / (2 * (workers - 1))


def iteration_s(layers: Sequence[Layer], rate: float) -> float:
    """Seconds from the start of a backward pass to the end of the forward pass that follows it."""
    arrived = arrivals(layers, rate)
    end = sum(layer.backward_s for layer in layers)
    for layer, arrival in zip(layers, arrived):
        end = max(end, arrival) + layer.forward_s
    return end


def arrivals(layers: Sequence[Layer], rate: float) -> list[float]:
    """When each layer's sums are complete, in seconds from the start of the backward pass."""
    gradients = []  # when which layer's may travel: the last layer's first
    clock = 0.0
    for index in reversed(range(len(layers))):
        clock += layers[index].backward_s
        gradients.append((clock, index))
    left = [layer.nbytes / rate for layer in layers]  # seconds of the link
    arrived = [0.0] * len(layers)
    waiting: list[int] = []  # a heap: the lowest layer first
    for (now, index), (until, _) in zip(gradients, [*gradients[1:], (math.inf, -1)]):
        heapq.heappush(waiting, index)
        while waiting and now < until:
            first = waiting[0]
            if now + left[first] > until:  # a lower layer comes before it is through
                left[first] -= until - now
                break
            now += left[first]
            arrived[first] = now
            heapq.heappop(waiting)
    return arrived
