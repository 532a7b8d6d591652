"""A direction of a link with delay and loss: which packets are lost, and when the others arrive. Pure."""

from __future__ import annotations

import math
import random
from collections import deque

from .frame import packets, without


class Loss:
    """Chooses the packets to lose: each with the same probability, the same ones for the same seed."""

    def __init__(self, probability: float, seed: str) -> None:
        self._probability = probability
        self._random = random.Random(seed)
        self._next = self._gap()  # the number of packets that pass before the next one that is lost

    def lost(self, count: int) -> list[int]:
        """Which of the next count packets are lost: their numbers among them, from 0."""
        lost = []
        while self._next < count:
            lost.append(int(self._next))
            self._next += 1 + self._gap()
        self._next -= count
        return lost

    def _gap(self) -> float:
        """How many packets pass between two lost ones: one draw for each loss rather than one for each packet."""
        if self._probability == 0:
            return math.inf
        if self._probability == 1:
            return 0
        return math.floor(math.log(1 - self._random.random()) / math.log(1 - self._probability))


class Line:
    """Frames on their way. Each arrives the delay after it was put in; frames keep their order.

    delay_s: seconds; limit: bytes that may be on their way, beyond which a frame is dropped whole.
    """

    def __init__(self, delay_s: float, loss: Loss, limit: int) -> None:
        self.packets = 0
        """Packets that were put in."""
        self.lost = 0
        """Those of them that were lost, as intended."""
        self.overflows = 0
        """Those of them that were dropped because the line was full: it is not faithful at this rate."""
        self._delay_s = delay_s
        self._loss = loss
        self._limit = limit
        self._bytes = 0
        self._frames: deque[tuple[float, bytes]] = deque()

    def put(self, frame: bytes, now: float) -> None:
        """A frame enters the line."""
        count = packets(frame)
        self.packets += count
        lost = self._loss.lost(count)
        self.lost += len(lost)
        if self._bytes + len(frame) > self._limit:
            self.overflows += count - len(lost)
            return
        for piece in without(frame, lost) if lost else (frame,):
            self._frames.append((now + self._delay_s, piece))
            self._bytes += len(piece)

    def due(self) -> float:
        """When the next frame arrives; infinity without one."""
        return self._frames[0][0] if self._frames else math.inf

    def take(self) -> bytes:
        """The next frame, which leaves the line."""
        _, frame = self._frames.popleft()
        self._bytes -= len(frame)
        return frame
