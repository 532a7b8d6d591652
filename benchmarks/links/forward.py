"""A link with delay and loss, between two tap devices: one for the node, one for the bridge.

python -m benchmarks.links.forward '{"node": "to0", "bridge": "br0", "lines": [[DELAY_S, LOSS, SEED, LIMIT], ...]}'

lines: what the node sends, and what it receives. The devices are made in this process's network namespace; the node's
is moved to its own afterwards. Writes a line when they are there, and one of JSON for each line that it reads; ends
when its input does. The kernel's netem would do the same, but not every kernel has it, and it loses whole frames of up
to 64 KB where a wire loses packets.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import struct
import sys
import time
from typing import Final

from .line import Line, Loss

DEVICE: Final = "/dev/net/tun"
TUNSETIFF: Final = 0x400454CA
TUNSETOFFLOAD: Final = 0x400454D0
TAP: Final = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
OFFLOADS: Final = (0x01 | 0x02 | 0x04 | 0x20 | 0x40, 0x01 | 0x02 | 0x04)
"""Checksums and frames of many packets, of TCP and UDP, or, before Linux 6.2, of TCP alone."""
FRAME: Final = 1 << 17
"""More than the largest frame."""
BATCH: Final = 64
"""Frames that are read from one device before the other is looked at."""
PR_SET_TIMERSLACK: Final = 29


def tap(name: str) -> int:
    """A new tap device, for frames of up to 64 KB."""
    device = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP))
    for offload in OFFLOADS:
        with contextlib.suppress(OSError):
            fcntl.ioctl(device, TUNSETOFFLOAD, offload)
            return device
    raise OSError(f"{DEVICE} takes no frames of many packets")


class Way:
    """One direction: from a device over a line to the other device."""

    def __init__(self, source: int, target: int, line: Line) -> None:
        self.source = source
        self.line = line
        self.late = 0.0
        """The most seconds by which a frame left after it was due."""
        self._target = target

    def read(self) -> None:
        """Reads what has come."""
        for _ in range(BATCH):
            try:
                frame = os.read(self.source, FRAME)
            except OSError:  # nothing more, or the device is not up yet
                return
            self.line.put(frame, time.monotonic())

    def write(self, now: float) -> None:
        """Writes what is due."""
        while (due := self.line.due()) <= now:
            with contextlib.suppress(OSError):  # the device is not up yet, or not any more
                os.write(self._target, self.line.take())
            self.late = max(self.late, now - due)

    def report(self) -> dict[str, float]:
        """What has passed so far."""
        line = self.line
        return {"packets": line.packets, "lost": line.lost, "overflows": line.overflows, "late_s": self.late}


def forward(ways: list[Way], commands: int) -> None:
    """Moves frames until the input ends."""
    while True:
        due = min(way.line.due() for way in ways)
        timeout = max(0.0, min(due - time.monotonic(), 3600.0))
        ready, _, _ = select.select([commands, *(way.source for way in ways)], [], [], timeout)
        for way in ways:
            if way.source in ready:
                way.read()
            way.write(time.monotonic())
        if commands in ready:
            if not os.read(commands, 4096):
                return
            print(json.dumps([way.report() for way in ways]), flush=True)


def main() -> None:
    """Makes the devices, and forwards."""
    options = json.loads(sys.argv[1])
    try:
        node, bridge = tap(options["node"]), tap(options["bridge"])
    except OSError as error:
        sys.exit(
            f"no link can have delay or loss ({error}): try `modprobe tun` as root (in a container: "
            f"--device {DEVICE}), and allow this user to write {DEVICE}"
        )
    lines = [Line(delay, Loss(loss, seed), limit) for delay, loss, seed, limit in options["lines"]]
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with contextlib.suppress(PermissionError):
        os.nice(-20)  # a link does not wait for the nodes' processes
    gc.disable()  # nothing here is in a cycle
    print("ready", flush=True)
    forward([Way(node, bridge, lines[0]), Way(bridge, node, lines[1])], sys.stdin.fileno())


if __name__ == "__main__":
    main()
