"""How near packets can come to the bound of `fptps bench trainer`: a simulation of nodes that need no processor time.

python -m benchmarks.packets --cluster 8x8 --link 200mbit --scale 0.05 resnet50 vgg16 alexnet bert_base

The bound is for packets that are infinitely small. Here a packet has 16 KB and cannot be interrupted, each link carries
one at a time in each direction, and a sum leaves when the last worker's packet has arrived. As many servers as workers
sum. Nothing waits for a processor, no window limits what is under way, and all workers compute alike.
"""

from __future__ import annotations

import heapq
import itertools
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import click
from tabulate import tabulate

from fptps._bench.bound import iteration_s, payload_rate
from fptps._bench.profile import Layer, load

from .shaped import PROFILES
from .testbed.quantities import bits

PACKET: Final = 16384
HEADER: Final = 64
ON_THE_WAY_S: Final = 60e-6
"""Until the first bytes of a packet have passed the switch."""
WARM_UP: Final = 2
"""Iterations that do not count."""


class Packet(NamedTuple):
    """A part of a layer's gradients."""

    layer: int
    bytes: int
    server: int
    urgency: int
    """The number of its tensor in the order of the forward pass: the lowest is the most urgent."""


def cut(layers: Sequence[Layer], servers: int) -> list[Packet]:
    """All packets of a model. Each goes to the server that has the fewest bytes so far."""
    summed = [0] * servers
    packets = []
    tensors = itertools.count()
    for number, layer in enumerate(layers):
        for elements in layer.elements:
            left, urgency = 4 * elements, next(tensors)
            while left > 0:
                server = summed.index(min(summed))
                size = min(left, PACKET)
                packets.append(Packet(number, size, server, urgency))
                summed[server] += size
                left -= size
    return packets


class Link:
    """One direction of a node's link. Senders take turns at equal urgency: each has a queue for every receiver."""

    def __init__(self, nodes: int) -> None:
        self.queues: list[list[tuple[int, int, int, Callable[[], None]]]] = [[] for _ in range(nodes)]
        """Of urgency, order, bytes, and what happens when the packet has arrived."""
        self.busy = False
        self.last = 0
        self.received = 0.0
        """When the other direction has received all that is on its way."""


class Simulation:
    """Workers 0 to n - 1 and servers n to 2n - 1, whose links carry rate bytes per second in each direction."""

    def __init__(self, layers: Sequence[Layer], nodes: int, rate: float, iterations: int) -> None:
        self._layers, self._n, self._rate, self._iterations = layers, nodes, rate, iterations
        self._packets = cut(layers, nodes)
        self._of_layer = Counter(packet.layer for packet in self._packets)
        self._links = [Link(2 * nodes) for _ in range(2 * nodes)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._contributed: Counter[tuple[int, int]] = Counter()  # by packet and iteration
        self._received: Counter[tuple[int, int, int]] = Counter()  # by worker, layer and iteration: packets
        self._waiting: dict[int, tuple[int, int]] = {}  # by worker: the layer and iteration that it waits for
        self.ends: list[float] = []
        """Of worker 0's iterations."""

    def run(self) -> list[float]:
        """Seconds of each iteration of worker 0."""
        for worker in range(self._n):
            self._backward(worker, len(self._layers) - 1, 0)
        while self._events:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        return [end - begin for begin, end in zip([0.0, *self.ends], self.ends)]

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), happen))

    def _backward(self, worker: int, layer: int, iteration: int) -> None:
        if layer < 0:
            self._forward(worker, 0, iteration)
            return

        def computed() -> None:
            for number, packet in enumerate(self._packets):
                if packet.layer == layer:
                    self._contribute(worker, number, iteration)
            self._backward(worker, layer - 1, iteration)

        self._at(self._now + self._layers[layer].backward_s, computed)

    def _forward(self, worker: int, layer: int, iteration: int) -> None:
        """Begins the forward steps from a layer on, as far as their sums are here."""
        if layer == len(self._layers):
            self._end(worker, iteration)
        elif self._received[worker, layer, iteration] < self._of_layer[layer]:
            self._waiting[worker] = layer, iteration
        else:
            end = self._now + self._layers[layer].forward_s
            self._at(end, lambda: self._forward(worker, layer + 1, iteration))

    def _end(self, worker: int, iteration: int) -> None:
        if worker == 0:
            self.ends.append(self._now)
        if iteration + 1 < self._iterations:
            self._backward(worker, len(self._layers) - 1, iteration + 1)

    def _contribute(self, worker: int, number: int, iteration: int) -> None:
        server = self._n + self._packets[number].server
        self._send(worker, server, number, lambda: self._summed(server, number, iteration))

    def _summed(self, server: int, number: int, iteration: int) -> None:
        self._contributed[number, iteration] += 1
        if self._contributed[number, iteration] == self._n:
            for worker in range(self._n):
                self._reply(server, worker, number, iteration)

    def _reply(self, server: int, worker: int, number: int, iteration: int) -> None:
        layer = self._packets[number].layer

        def arrived() -> None:
            self._received[worker, layer, iteration] += 1
            whole = self._received[worker, layer, iteration] == self._of_layer[layer]
            if whole and self._waiting.get(worker) == (layer, iteration):
                del self._waiting[worker]
                self._forward(worker, layer, iteration)

        self._send(server, worker, number, arrived)

    def _send(self, sender: int, receiver: int, number: int, arrived: Callable[[], None]) -> None:
        packet = self._packets[number]
        entry = (packet.urgency, next(self._order), packet.bytes + HEADER, arrived)
        heapq.heappush(self._links[sender].queues[receiver], entry)
        self._transmit(sender)

    def _transmit(self, sender: int) -> None:
        """Begins the most urgent packet; among equals that of the next receiver."""
        link = self._links[sender]
        turns = [(link.last + 1 + step) % (2 * self._n) for step in range(2 * self._n)]
        waiting = [receiver for receiver in turns if link.queues[receiver]]
        if link.busy or not waiting:
            return
        receiver = min(waiting, key=lambda each: link.queues[each][0][0])
        _, _, size, arrived = heapq.heappop(link.queues[receiver])
        link.last, link.busy = receiver, True
        taken = size / self._rate
        other = self._links[receiver]
        other.received = max(other.received + taken, self._now + ON_THE_WAY_S + taken)

        def sent() -> None:
            link.busy = False
            self._transmit(sender)

        self._at(self._now + taken, sent)
        self._at(other.received, arrived)


def ideal_s(layers: Sequence[Layer], nodes: int, rate: float, iterations: int = 8) -> float:
    """Seconds of an iteration with nodes workers and as many servers, whose links carry rate bytes per second."""
    return statistics.median(Simulation(layers, nodes, rate, iterations).run()[WARM_UP:])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cluster", default="8x8", show_default=True, help="Workers x servers, as many of both.")
@click.option("--link", default="200mbit", show_default=True)
@click.option("--scale", type=click.FloatRange(0, min_open=True), default=0.05, show_default=True)
@click.argument("models", nargs=-1, required=True)
def main(cluster: str, link: str, scale: float, models: tuple[str, ...]) -> None:
    """Simulate trainings with ideal nodes."""
    size = re.fullmatch(r"(\d+)x\1", cluster)
    if size is None or size[1] == "0":
        raise click.BadParameter(f"{cluster!r}: as many servers as workers are expected, as in 8x8")
    rate = payload_rate(bits(link))
    rows = []
    for model in models:
        layers = load(PROFILES / f"{model}.json", scale).layers
        bound, ideal = iteration_s(layers, rate), ideal_s(layers, int(size[1]), rate)
        rows.append([model, f"{bound * 1e3:.0f}", f"{ideal * 1e3:.0f}", f"{ideal / bound:.2f}"])
    click.echo(tabulate(rows, ("model", "bound ms", "with packets ms", "ratio"), disable_numparse=True))


if __name__ == "__main__":
    main()
