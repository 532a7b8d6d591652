"""benchmarks/packets: the simulation of ideal nodes."""

import pytest
from benchmarks import packets
from benchmarks.shaped import PROFILES

from fptps._bench.bound import iteration_s
from fptps._bench.profile import Layer, load

RATE = 1e6


def seconds(size: int) -> float:
    """Of a packet on a link."""
    return (size + packets.HEADER) / RATE


def test_packets_are_cut_as_evenly_as_they_can_be():
    layers = load(PROFILES / "resnet50.json", 0.1).layers
    cut = packets.cut(layers, 8)
    summed = [sum(packet.bytes for packet in cut if packet.server == server) for server in range(8)]
    assert sum(summed) == sum(layer.nbytes for layer in layers)
    assert max(summed) - min(summed) <= packets.PACKET


def test_one_worker_and_one_server():
    """All packets go there one after the other; the last one comes back after all others."""
    layers = [Layer((40960,), 0.1, 0.2)]
    expected = 0.2 + 11 * seconds(packets.PACKET) + 2 * packets.ON_THE_WAY_S + 0.1
    assert packets.ideal_s(layers, 1, RATE) == pytest.approx(expected)


def test_a_sum_waits_for_the_last_worker():
    """Both servers sum one of two packets: each link carries two packets there and two back."""
    layers = [Layer((8192,), 0.1, 0.2)]
    there = 0.2 + 2 * seconds(packets.PACKET) + packets.ON_THE_WAY_S
    expected = there + 2 * seconds(packets.PACKET) + packets.ON_THE_WAY_S + 0.1
    assert packets.ideal_s(layers, 2, RATE) == pytest.approx(expected)


def test_the_most_urgent_packet_overtakes():
    """The first layer's gradient is computed last and needed first: the second layer's packets make way for it."""
    second = Layer((40960,), 0.0, 0.0)
    alone = packets.ideal_s([Layer((256,), 5.0, 0.05)], 1, RATE)
    both = packets.ideal_s([Layer((256,), 5.0, 0.05), second], 1, RATE)
    assert both == pytest.approx(alone, abs=2 * seconds(packets.PACKET))


@pytest.mark.parametrize("model", ["resnet50", "alexnet"])
def test_no_simulation_beats_the_bound(model):
    layers = load(PROFILES / f"{model}.json", 0.02).layers
    bound, ideal = iteration_s(layers, 20 * RATE), packets.ideal_s(layers, 4, 20 * RATE, iterations=4)
    assert bound < ideal < 1.3 * bound
