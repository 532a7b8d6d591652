"""Frames of a tap device: an Ethernet frame of IPv4 after the kernel's virtio_net_hdr. Pure.

TCP and UDP hand the kernel up to 64 KB at a time. Such a frame stands for many packets on a wire, and is never split on
its way through virtual links. Loss is loss of packets, so that a frame with lost ones in it is split around them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("=BBHHHH")
"""virtio_net_hdr: flags, segmentation, length of all headers, payload of a packet, where the checksum begins and is."""
UNSEGMENTED: Final = 0
UDP: Final = 5  # VIRTIO_NET_HDR_GSO_UDP_L4
ECN: Final = 0x80
IP: Final = HEADER.size + 14
"""Where IP's header begins."""
IPV4: Final = b"\x08\x00"
FIN_PSH: Final = 0x09
"""TCP's flags that only the last packet of a frame has."""


class Shape(NamedTuple):
    """The parts of a frame that stands for many packets."""

    transport: int
    """Where TCP's or UDP's header begins."""
    payload: int
    """Where the payload begins."""
    size: int
    """Bytes of payload of each packet but the last."""
    udp: bool


def is_ipv4(frame: bytes) -> bool:
    """Whether it carries IPv4, rather than ARP."""
    return frame[IP - 2 : IP] == IPV4


def packets(frame: bytes) -> int:
    """How many packets on a wire a frame stands for; 0 for ARP, which no link loses."""
    if not is_ipv4(frame):
        return 0
    shape = shape_of(frame)
    return 1 if shape is None else max(1, -(-(len(frame) - shape.payload) // shape.size))


def shape_of(frame: bytes) -> Shape | None:
    """The parts of a frame of many packets; None for a frame that is one packet."""
    _, segmentation, _, size, _, _ = HEADER.unpack_from(frame)
    if segmentation == UNSEGMENTED or size == 0:
        return None
    transport = IP + 4 * (frame[IP] & 15)
    if segmentation & ~ECN == UDP:
        return Shape(transport, transport + 8, size, True)
    return Shape(transport, transport + 4 * (frame[transport + 12] >> 4), size, False)


def without(frame: bytes, lost: Sequence[int]) -> Iterator[bytes]:
    """The frames that remain of one when the packets with these numbers are lost, which are in ascending order."""
    shape = shape_of(frame)
    if shape is None:
        return
    begin, count = 0, packets(frame)
    for end in (*lost, count):
        if end > begin:
            yield piece(frame, shape, begin, end, end == count)
        begin = end + 1


def piece(frame: bytes, shape: Shape, begin: int, end: int, last: bool) -> bytes:
    """The frame of the packets from begin to end of another; last: the other's last packet is in it."""
    payload = frame[shape.payload + begin * shape.size : shape.payload + end * shape.size]
    headers = bytearray(frame[: shape.payload])
    flags, segmentation, length, size, checksum_start, checksum_at = HEADER.unpack_from(frame)
    if len(payload) <= size:
        segmentation = size = 0
    HEADER.pack_into(headers, 0, flags, segmentation, length, size, checksum_start, checksum_at)
    struct.pack_into("!H", headers, IP + 2, shape.payload - IP + len(payload))
    (identity,) = struct.unpack_from("!H", frame, IP + 4)
    struct.pack_into("!H", headers, IP + 4, (identity + begin) % 2**16)
    struct.pack_into("!H", headers, IP + 10, 0)
    struct.pack_into("!H", headers, IP + 10, ones_complement(headers[IP : shape.transport]) ^ 0xFFFF)
    of_transport = shape.payload - shape.transport + len(payload)
    if shape.udp:
        struct.pack_into("!H", headers, shape.transport + 4, of_transport)
    else:
        (sequence,) = struct.unpack_from("!I", frame, shape.transport + 4)
        struct.pack_into("!I", headers, shape.transport + 4, (sequence + begin * shape.size) % 2**32)
        if not last:
            headers[shape.transport + 13] &= ~FIN_PSH
    # The kernel completes the checksum: its field holds the sum of the pseudo-header.
    pseudo = bytes(headers[IP + 12 : IP + 20]) + struct.pack("!HH", headers[IP + 9], of_transport)
    struct.pack_into("!H", headers, checksum_start + HEADER.size + checksum_at, ones_complement(pseudo))
    return bytes(headers) + payload


def ones_complement(data: bytes | bytearray) -> int:
    """The sum of 16-bit words as Internet checksums add them; data has an even length."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return int(total)
