"""Another program's traffic: one flow of TCP or UDP, and where flows end.

python -m benchmarks.links.flow sink ADDRESS
python -m benchmarks.links.flow tcp ADDRESS BITS_PER_SECOND     # or udp

The rate counts whole Ethernet frames, as links do. A sender waits for a line of input, then sends until its input ends,
and writes how many bytes of payload it has sent.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

PORT: Final = 9100
FRAME: Final = 1514
TCP_PAYLOAD: Final = 1448
UDP_PAYLOAD: Final = 1472
SO_MAX_PACING_RATE: Final = 47
UDP_SEGMENT: Final = 103
MOST_SEGMENTS: Final = 40
"""Packets of UDP in one call; the kernel takes 64 KB."""
TICK_S: Final = 0.002
"""UDP sends this often what is due."""


def sink(address: str) -> None:
    """Receives flows and drops what they bring. UDP needs no reader: a full socket drops as cheaply."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound, socket.create_server((address, PORT)) as server:
        bound.bind((address, PORT))
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()


def accept(server: socket.socket) -> None:
    """Receives each connection in a thread of its own."""
    while connection := server.accept()[0]:
        threading.Thread(target=drop, args=(connection,), daemon=True).start()


def drop(connection: socket.socket) -> None:
    """Reads a connection to its end."""
    buffer = bytearray(1 << 18)
    with connection, contextlib.suppress(OSError):
        while connection.recv_into(buffer):
            pass


def tcp(address: str, rate: float, ended: Callable[[float], bool]) -> int:
    """A flow of TCP that takes what it gets, up to a rate; ended: waits so long for the end. Returns the bytes."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        # cubic, which most systems have; paced in the kernel.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        payload_per_s = int(rate / 8 * TCP_PAYLOAD / FRAME)
        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("Q", payload_per_s))
        connection.connect((address, PORT))
        connection.setblocking(False)
        data = bytes(1 << 16)
        sent = 0
        while not ended(0):
            _, writable, _ = select.select([], [connection], [], 0.01)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    sent += connection.send(data)
    return sent


def udp(address: str, rate: float, ended: Callable[[float], bool]) -> int:
    """A flow of UDP at a rate, whatever is lost; ended: waits so long for the end. Returns the bytes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flow:
        flow.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, UDP_PAYLOAD)
        flow.connect((address, PORT))
        flow.setblocking(False)
        start = time.monotonic()
        sent = 0
        while not ended(TICK_S):
            due = int((time.monotonic() - start) * rate / 8 / FRAME)  # packets
            while sent < due:
                count = min(due - sent, MOST_SEGMENTS)
                with contextlib.suppress(BlockingIOError, ConnectionRefusedError):  # dropped here
                    flow.send(bytes(count * UDP_PAYLOAD))
                sent += count
    return sent * UDP_PAYLOAD


def wait_for_end(seconds: float) -> bool:
    """Whether the input ends within so many seconds."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready)


def main() -> None:
    """Runs what the arguments ask for."""
    kind, address, *rate = sys.argv[1:]
    if kind == "sink":
        sink(address)
        return
    print("ready", flush=True)
    if sys.stdin.readline():
        flow = {"tcp": tcp, "udp": udp}[kind]
        print(flow(address, float(rate[0]), wait_for_end), flush=True)


if __name__ == "__main__":
    main()
