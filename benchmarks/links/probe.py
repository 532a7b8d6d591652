"""Measures a link with plain TCP, as ping and iperf would: round trips, and the rate each way.

python -m benchmarks.links.probe serve ADDRESS
python -m benchmarks.links.probe measure ADDRESS UP_SECONDS DOWN_SECONDS    # writes a line of JSON

A rate is that of what arrives after the first bytes, which a link's bucket lets through at any rate.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from typing import Final

PORT: Final = 9101
ROUND_TRIPS: Final = 20
FIRST: Final = 1 << 18
"""Bytes that come before the measurement: the bucket of a link, and TCP's slow start."""
NUMBER: Final = struct.Struct("!d")
CHUNK: Final = 1 << 17


def serve(address: str) -> None:
    """Answers measurements until the input ends."""
    with socket.create_server((address, PORT)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()


def accept(server: socket.socket) -> None:
    """Answers each connection in a thread of its own."""
    while connection := server.accept()[0]:
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    """Echoes round trips, then sends for as long as is asked, or receives if that is no time at all."""
    with connection:
        prepare(connection)
        for _ in range(ROUND_TRIPS):
            connection.sendall(exactly(connection, 1))
        (seconds,) = NUMBER.unpack(exactly(connection, NUMBER.size))
        if seconds:
            send(connection, seconds)
        else:
            connection.sendall(NUMBER.pack(receive(connection)))


def measure(address: str, up_s: float, down_s: float) -> dict[str, float]:
    """The shortest round trip in seconds; payload in bytes per second from here and to here."""
    with connect(address) as connection:
        round_trip = round_trip_s(connection)
        connection.sendall(NUMBER.pack(0))
        send(connection, up_s)
        (up,) = NUMBER.unpack(exactly(connection, NUMBER.size))
    with connect(address) as connection:
        round_trip = min(round_trip, round_trip_s(connection))
        connection.sendall(NUMBER.pack(down_s))
        return {"round_trip_s": round_trip, "send": up, "receive": receive(connection)}


def connect(address: str) -> socket.socket:
    """A connection to the server."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    prepare(connection)
    connection.connect((address, PORT))
    return connection


def prepare(connection: socket.socket) -> None:
    """The congestion control that most systems have; no waiting for more to send."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def round_trip_s(connection: socket.socket) -> float:
    """The shortest of some round trips."""
    trips = []
    for _ in range(ROUND_TRIPS):
        begin = time.monotonic()
        connection.sendall(b"\0")
        exactly(connection, 1)
        trips.append(time.monotonic() - begin)
    return min(trips)


def send(connection: socket.socket, seconds: float) -> None:
    """Sends for so long, and says that this is all."""
    data = bytes(CHUNK)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def receive(connection: socket.socket) -> float:
    """Receives all; the bytes per second after the first of them."""
    received = measured = 0
    begin = now = 0.0
    buffer = bytearray(CHUNK)
    while got := connection.recv_into(buffer):
        now = time.monotonic()
        received += got
        if begin:
            measured += got
        elif received >= FIRST:
            begin = now
    return measured / (now - begin) if measured else 0.0


def exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes."""
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the other side of the link has closed the connection")
        data += more
    return data


def main() -> None:
    """Runs what the arguments ask for."""
    kind, address, *seconds = sys.argv[1:]
    if kind == "serve":
        serve(address)
        return
    print(json.dumps(measure(address, *map(float, seconds))), flush=True)


if __name__ == "__main__":
    main()
