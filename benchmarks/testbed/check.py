"""What the links of a test bed are like, measured with plain TCP between each node and another machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..links.probe import FIRST
from .network import OUTSIDE, Network
from .program import Program
from .quantities import Hindrance, Link, bits

SECONDS: Final = 1.0
"""How long TCP sends over a link, besides the time for the first bytes, which do not count."""
PATIENCE_S: Final = 120.0
FRAME: Final = 1514 / 1448
"""Bytes of a frame for each of payload."""


class Checked(NamedTuple):
    """A direction of a link: what it was asked to be, and what it is."""

    link: Link
    rate: float
    """Bits per second, asked for."""
    tcp_rate: float
    """Bits per second, with headers, that one connection gets. Delay and loss may leave it below the link's."""
    round_trip_s: float
    """Asked for: the delays of both directions."""
    tcp_round_trip_s: float
    """The shortest of some."""
    loss: float
    """The fraction of packets, asked for."""
    lost: int
    """Packets that were lost on purpose; None of them where no loss is asked for."""
    packets: int
    """Of so many; 0 for a link without delay and loss, which does not count them."""

    def as_json(self) -> dict[str, Any]:
        """With the node and the direction."""
        direction = "send" if self.link.sends else "receive"
        return {
            "node": self.link.node,
            "direction": direction,
            **{k: v for k, v in self._asdict().items() if k != "link"},
        }


def measure(network: Network) -> list[Checked]:
    """Measures every shaped link, one after the other, while nothing else uses them."""
    server = Program(network.enter(OUTSIDE), "probe", "serve", network.address(OUTSIDE))
    try:
        server.read()
        return [each for node, rate in network.rates.items() if rate for each in measure_node(network, node)]
    finally:
        server.end()


def measure_node(network: Network, node: str) -> list[Checked]:
    """Measures both directions of a node's link."""
    rate = network.rates[node]
    assert rate is not None
    rates = (bits(rate.send), bits(rate.receive))
    hindrance = network.hindrances.get(node, Hindrance())
    times = [str(SECONDS + 2 * FIRST * 8 / each) for each in rates]
    before = network.passed()
    probe = Program(network.enter(node), "probe", "measure", network.address(OUTSIDE), *times)
    try:
        got = json.loads(probe.finish(PATIENCE_S))
    finally:
        probe.end()
    after = network.passed()
    checked = []
    for sends, asked, tcp, loss in zip(
        (True, False), rates, (got["send"], got["receive"]), (hindrance.send_loss, hindrance.receive_loss)
    ):
        link = Link(node, sends)
        lost, packets = (
            (int(after[link][each] - before[link][each]) for each in ("lost", "packets")) if link in after else (0, 0)
        )
        trip = hindrance.send_delay_s + hindrance.receive_delay_s
        checked.append(Checked(link, asked, tcp * 8 * FRAME, trip, got["round_trip_s"], loss, lost, packets))
    return checked


def table(checked: Sequence[Checked]) -> str:
    """A line for each direction of each link: asked for, and measured."""
    lines = [f"{'link':<19} {'Mbit/s':>8} {'TCP':>8} {'round trip ms':>14} {'TCP':>8} {'loss':>7} {'lost':>14}"]
    for each in checked:
        loss = f"{each.lost} of {each.packets}" if each.packets else "-"
        line = f"{each.link!s:<19} {each.rate / 1e6:>8g} {each.tcp_rate / 1e6:>8.1f} {each.round_trip_s * 1e3:>14g} "
        lines.append(f"{line}{each.tcp_round_trip_s * 1e3:>8.2f} {each.loss:>7.2%} {loss:>14}")
    return "\n".join(lines)
