"""benchmarks.links: frames of many packets, delay and loss; all of it pure."""

import json
import random
import struct
import sys

import pytest
from benchmarks.links import forward
from benchmarks.links import frame as frames
from benchmarks.links.frame import HEADER, IP, packets, without
from benchmarks.links.line import Line, Loss

TCP, UDP = 6, 17
SIZE = 1000


def big_frame(protocol, count, size=SIZE, odd=333):
    """A frame of so many packets as the kernel makes it, the last one odd bytes long; its sum is to be completed."""
    payload = random.Random(count).randbytes((count - 1) * size + odd)
    if protocol == TCP:
        transport = struct.pack("!HHIIBBHHH", 4000, 5000, 2**32 - 1500, 77, 5 << 4, 0x19, 512, 0, 0)
    else:
        transport = struct.pack("!HHHH", 4000, 5000, 8 + len(payload), 0)
    length = 20 + len(transport) + len(payload)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 65534, 0x4000, 64, protocol, 0, b"\x0a\x4d\1\1", b"\x0a\x4d\2\1")
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    pseudo = ip[12:20] + struct.pack("!HH", protocol, len(transport) + len(payload))
    at = 16 if protocol == TCP else 6
    transport = transport[:at] + struct.pack("!H", checksum(pseudo) ^ 0xFFFF) + transport[at + 2 :]
    kind = (1 if protocol == TCP else 5) if count > 1 else 0
    header = HEADER.pack(1, kind, 34 + len(transport), size if count > 1 else 0, 34, at)
    return header + b"\1" * 12 + b"\x08\x00" + ip + transport + payload


def checksum(data):
    """Of the Internet, word by word."""
    total = 0
    for (word,) in struct.iter_unpack("!H", data + b"\0" * (len(data) % 2)):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def on_the_wire(frame):
    """The packets that a network card makes of a frame: a second way to do what frame.py does."""
    _, kind, _, size, begin, at = HEADER.unpack_from(frame)
    ip, rest = frame[IP : IP + 20], frame[IP + 20 :]
    head = 20 if ip[9] == TCP else 8
    payload = rest[head:]
    sums_to = checksum(ip[12:20] + struct.pack("!HH", ip[9], len(rest))) ^ 0xFFFF
    assert (begin, rest[at : at + 2]) == (
        34,
        struct.pack("!H", sums_to),
    )  # of the whole frame, for the card to complete
    assert checksum(ip) == 0
    assert bool(kind) == (size > 0)
    assert not kind or len(payload) > size  # the kernel refuses to segment a frame of one packet
    assert struct.unpack_from("!H", ip, 2)[0] == len(ip) + len(rest)
    pieces = [payload[i : i + size] for i in range(0, len(payload), size)] if kind else [payload]
    for number, piece in enumerate(pieces):
        identity = (struct.unpack_from("!H", ip, 4)[0] + number) % 2**16
        if ip[9] == TCP:
            sequence = (struct.unpack_from("!I", rest, 4)[0] + number * size) % 2**32
            last = number == len(pieces) - 1
            yield identity, sequence, rest[13] if last else rest[13] & ~9, piece
        else:
            assert struct.unpack_from("!H", rest, 4)[0] == len(rest)
            yield identity, piece


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("lost", [[0], [6], [3], [0, 1], [5, 6], [1, 4], [0, 2, 4, 6], range(6), range(1, 7), range(7)])
def test_packets_are_lost_out_of_a_frame(protocol, lost):
    frame = big_frame(protocol, 7)
    assert packets(frame) == 7
    whole = list(on_the_wire(frame))
    assert len(whole) == 7
    left = [packet for piece in without(frame, list(lost)) for packet in on_the_wire(piece)]
    assert left == [packet for number, packet in enumerate(whole) if number not in lost]


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_a_frame_of_one_packet(protocol):
    frame = big_frame(protocol, 1)
    assert packets(frame) == 1
    assert list(without(frame, [0])) == []


def test_a_frame_whose_last_packet_is_full():
    frame = big_frame(TCP, 3, odd=SIZE)
    assert packets(frame) == 3
    assert [len(piece) for piece in without(frame, [1])] == [len(frame) - 2 * SIZE] * 2


def test_arp_is_never_lost():
    frame = bytes(HEADER.size + 12) + b"\x08\x06" + bytes(28)
    assert packets(frame) == 0
    line = Line(0.5, Loss(1.0, "seed"), 1000)
    line.put(frame, 3.0)
    assert (line.packets, line.lost, line.due(), line.take()) == (0, 0, 3.5, frame)


@pytest.mark.parametrize("probability", [0.5, 0.01, 0.001])
def test_as_many_are_lost_as_asked_for(probability):
    loss, count = Loss(probability, "seed"), 1_000_000
    lost = loss.lost(count)
    deviation = (count * probability * (1 - probability)) ** 0.5
    assert abs(len(lost) - count * probability) < 4 * deviation
    again = Loss(probability, "seed")
    in_frames = [base + each for base in range(0, count, 40) for each in again.lost(40)]
    assert in_frames == lost  # however the packets are put into frames
    assert Loss(probability, "another").lost(count) != lost


def test_no_loss_and_nothing_but_loss():
    assert Loss(0.0, "seed").lost(1000) == []
    assert Loss(1.0, "seed").lost(3) == [0, 1, 2]


def test_a_line_holds_what_its_rate_brings_in_its_delay():
    """Whatever comes in leaves the delay later; what is on its way is the rate times the delay."""
    frame = big_frame(UDP, 1, odd=100)
    line = Line(0.25, Loss(0.0, "seed"), 1 << 20)
    arrivals, most = [], 0
    for tick in range(1000):  # a frame every 1/64 s
        now = tick / 64
        while line.due() <= now:
            assert line.take() == frame
            arrivals.append(now)
        line.put(frame, now)
        most = max(most, tick + 1 - len(arrivals))
    assert arrivals == [tick / 64 for tick in range(16, 1000)]
    assert most == 16
    assert line.overflows == 0


def test_a_full_line_drops_and_counts():
    frame = big_frame(TCP, 5)
    line = Line(1.0, Loss(0.0, "seed"), 2 * len(frame))
    for _ in range(3):
        line.put(frame, 0.0)
    assert (line.packets, line.lost, line.overflows) == (15, 0, 5)
    line.take()
    line.put(frame, 0.5)
    assert line.overflows == 5


def test_a_line_loses_packets_not_frames():
    line = Line(0.0, Loss(0.1, "seed"), 1 << 24)
    sent = passed = 0
    for _ in range(100):
        line.put(big_frame(TCP, 40), 0.0)
        sent += 40
    while line.due() == 0.0:
        passed += frames.packets(line.take())
    assert sent == line.packets == passed + line.lost
    assert 300 < line.lost < 500


def test_without_tap_devices(tmp_path, monkeypatch):
    monkeypatch.setattr(forward, "DEVICE", str(tmp_path / "tun"))
    monkeypatch.setattr(sys, "argv", ["forward", json.dumps({"node": "a", "bridge": "b", "lines": []})])
    with pytest.raises(SystemExit, match="modprobe tun"):
        forward.main()
