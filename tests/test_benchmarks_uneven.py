"""benchmarks/uneven: the bound of links that differ, and the table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from benchmarks import uneven
from benchmarks.testbed import change, plan
from benchmarks.testbed.bed import plan_paths
from benchmarks.testbed.quantities import Rate, bits

from fptps._bench import bound
from fptps._bench.profile import Layer, Profile

PROFILE = Profile("one layer", (Layer((1_000_000,), 0.0, 0.0),))


@pytest.mark.parametrize(("workers", "servers"), [(2, 0), (2, 1), (3, 1), (4, 1), (4, 2), (4, 4), (4, 6), (8, 3)])
def test_equal_links_have_the_bound_of_the_bench(workers: int, servers: int) -> None:
    rate = Rate.parse("200mbit")
    wanted = bound.model_rate(workers, servers, bound.payload_rate(200e6))
    assert uneven.model_rate([rate] * workers, [rate] * servers) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("workers", "servers", "paths"),
    [
        ("4 4 4", "4", {}),
        ("4 4 2", "4", {}),
        ("4 4 1", "4 1", {}),
        ("4 3 2", "", {}),
        ("4 4 4", "1 2", {}),
        ("1 4", "4", {}),
        ("4,2 4 4", "4,1", {}),
        ("4 4 4", "4", {(0, 0): 1}),
        ("4 4 4", "4 4", {(0, 0): 1, (2, 1): 0.5, (1, 1): 2}),
        ("4 4 4", "4 2", {(1, 0): 3, (0, 0): 4}),
        ("4 4", "4 4", {(1, 0): 0.2}),
    ],
)
def test_no_other_shares_make_a_round_shorter(
    workers: str, servers: str, paths: Mapping[tuple[int, int], float]
) -> None:
    """Against all shares of a 20th, and what they make each link and each path from a worker to a server carry."""
    links = [Rate.parse(",".join(f"{n}mbit" for n in text.split(","))) for text in (workers + " " + servers).split()]
    n = len(workers.split())
    capacity = [bound.payload_rate(min(bits(rate.send), bits(rate.receive))) for rate in links]
    parts = 20

    def seconds(shares: tuple[int, ...]) -> float:
        carried = [1 + (n - 2) * a / parts for a in shares[:n]] + [n * x / parts for x in shares[n:]]
        over = [shares[n + server] / parts / bound.payload_rate(rate * 1e6) for (_, server), rate in paths.items()]
        return max(*(amount / c for amount, c in zip(carried, capacity)), *over)

    some = itertools.product(range(parts + 1), repeat=len(links) - 1)
    best = min(seconds((*rest, parts - sum(rest))) for rest in some if sum(rest) <= parts)
    pairs = {f"worker:{worker}-server:{server}": f"{rate}mbit" for (worker, server), rate in paths.items()}
    found = 1 / uneven.model_rate(links[:n], links[n:], uneven.server_paths(pairs))
    assert found * (1 - 1e-9) <= best <= found * 1.2


def test_the_slowest_path_of_a_server_counts() -> None:
    paths = {"worker:0-server:1": "100mbit", "server:1-worker:2": "9mbit", "worker:0-server:0": "1gbit"}
    assert uneven.server_paths(paths) == {0: "1gbit", 1: "9mbit"}
    with pytest.raises(ValueError, match="a worker and a server are expected"):
        uneven.server_paths({"worker:0-worker:1": "1mbit"})


def test_a_path_has_its_bound() -> None:
    """Server 0 sums T / 8 of the model, the others T / 4 each, and the workers (T - 1) / 2 each."""
    path = uneven.Case("", 4, 4, paths={"worker:0-server:0": "25mbit"})
    found = uneven.bounds(path, PROFILE)[0] / uneven.bounds(uneven.Case("", 4, 4), PROFILE)[0]
    assert found == pytest.approx(3 / 2.875)


def test_each_change_has_its_bound() -> None:
    case = uneven.Case("", 2, 2, {"worker:0": "100mbit"}, ((3, "worker:0", "200mbit"), (5, "worker:1", "50mbit")))
    before, rises, falls = uneven.bounds(case, PROFILE)
    assert (before / rises, falls / rises) == pytest.approx((2, 4))


def test_the_table_shows_when_a_plan_is_found() -> None:
    first = {"bound_ms": 100.0, "iterations_ms": [400.0, 90.0, 120.0, *[104.0] * 7], "plan_changes": [1]}
    second = {"bound_ms": 200.0, "iterations_ms": [300.0] * 5, "plan_changes": []}
    samples: list[dict[str, Any]] = [{"case": "slow", "phases": [first, second]}]
    lines = uneven.rows(samples)
    assert lines[0] == ["slow", "100", "400", "104", "1.04", "3", "1"]
    assert lines[1] == ["... change 1", "200", "300", "300", "1.50", "-", "-"]


def test_every_case_can_be_run() -> None:
    for case in uneven.CASES:
        nodes = plan(case.workers, case.servers, case.rate, case.rates)
        assert len(plan_paths(list(nodes), case.paths)) == len(case.paths)
        assert len(uneven.bounds(case, PROFILE)) == 1 + len(case.changes)
        for when, node, rate in case.changes:
            assert change(f"iteration:{when}", f"{node}={rate}")
            assert node in nodes
            assert when < uneven.ITERATIONS
