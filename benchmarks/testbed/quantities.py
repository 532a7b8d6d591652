"""What links are described by: rates, delays, losses, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

BITS: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LONGEST_S: Final = 10.0
EVERY: Final = "all"
"""Stands for every server and worker."""


class TestBedError(Exception):
    """The test bed cannot be made, or a tool that it uses failed."""


def bits(rate: str) -> float:
    """The bits per second of a rate as tc writes it: "1gbit", "500mbit"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?bit)", rate)
    if match is None or not float(match[1]):
        raise ValueError(f"{rate!r} is not a rate: a number and bit, kbit, mbit or gbit are expected, as in 500mbit")
    return float(match[1]) * BITS[match[2]]


def seconds(text: str) -> float:
    """The seconds of "30ms", "500us", "0.1s"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time: a number and us, ms or s are expected, as in 30ms")
    return float(match[1]) * SECONDS[match[2]]


def fraction(text: str) -> float:
    """The fraction that "0.1%" is."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if match is None or float(match[1]) > 100:
        raise ValueError(f"{text!r} is not a loss: a percentage is expected, as in 0.1%")
    return float(match[1]) / 100


def both_ways(text: str) -> tuple[str, str]:
    """The word for what is sent and the one for what is received: "1gbit" is for both, "1gbit,500mbit" one for each."""
    send, _, receive = text.partition(",")
    return send, receive or send


def assignment(text: str, form: str = "NODE=VALUE is expected, as in worker:1=250mbit") -> tuple[str, str]:
    """The node and its value in "worker:1=250mbit"."""
    node, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: {form}")
    return node, value


class Pair(NamedTuple):
    """Two nodes with a path of its own between them."""

    first: str
    second: str

    @classmethod
    def parse(cls, text: str, nodes: Sequence[str]) -> Pair:
        """From "worker:0-server:0"; nodes: those that there are."""
        pair = text.split("-")
        if len(pair) != 2:
            raise ValueError(f"{text!r} is not a pair of nodes: two are expected, as in worker:0-server:0")
        for node in pair:
            if node not in nodes:
                raise ValueError(f"{text!r}: there is no {node!r}: {', '.join(nodes)} are expected")
        if pair[0] == pair[1]:
            raise ValueError(f"{text!r}: a path is between two nodes")
        return cls(*sorted(pair))

    def __str__(self) -> str:
        return f"{self.first}-{self.second}"


class Rate(NamedTuple):
    """How fast a node may send and receive, in tc's words."""

    send: str
    receive: str

    @classmethod
    def parse(cls, text: str) -> Rate:
        """From "1gbit", for both directions, or "1gbit,500mbit": the first to send, the second to receive."""
        rate = cls(*both_ways(text))
        for each in rate:
            bits(each)
        return rate

    def __str__(self) -> str:
        return self.send if self.send == self.receive else f"{self.send},{self.receive}"


class Hindrance(NamedTuple):
    """The delay in seconds and the fraction of lost packets, of what a node sends and of what it receives."""

    send_delay_s: float = 0.0
    receive_delay_s: float = 0.0
    send_loss: float = 0.0
    receive_loss: float = 0.0

    @classmethod
    def parse(cls, delay: str, loss: str) -> Hindrance:
        """From "15ms", for both directions, or "15ms,5ms"; and from "0.1%" or "0.1%,0%"."""
        delays = [seconds(each) for each in both_ways(delay)]
        if max(delays) > LONGEST_S:
            raise ValueError(f"a delay of {delay}: at most {LONGEST_S:g} s are possible")
        return cls(*delays, *(fraction(each) for each in both_ways(loss)))


class Link(NamedTuple):
    """One direction of a node's link."""

    node: str
    sends: bool

    def __str__(self) -> str:
        return f"{self.node} {'sends' if self.sends else 'receives'}"


def value_of(node: str, given: Mapping[str, str], otherwise: str) -> str:
    """What is given for a node, else for its role, else for all."""
    return given.get(node, given.get(node.partition(":")[0], given.get(EVERY, otherwise)))


def check_nodes(given: Mapping[str, str], nodes: Sequence[str]) -> None:
    """ValueError if something is given for a node that there is not; nodes: those whose links are shaped."""
    known = {*nodes, *(node.partition(":")[0] for node in nodes), EVERY}
    for node in given:
        if node not in known:
            raise ValueError(f"there is no {node!r}: {', '.join(sorted(known))} are expected")
