"""The pure part of fptps.torch.local: settings, decisions, and the cut into fragments."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")
from fptps.torch.local._algorithm import Act, Algorithm, cut, decide

pytestmark = pytest.mark.demo


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"steps": 0}, "steps is 0, but at least 1"),
        ({"total_steps": 0}, "total_steps is 0, but at least 1"),
        ({"fragments": 0}, "fragments is 0, but at least 1"),
        ({"delay": 2}, "delay is 2, but 0 to 1, the steps of a round"),
        ({"mixing": 1.0}, "mixing is 1.0, but a number from 0 to below 1"),
        ({"error_feedback": True}, "there is no quantizer"),
    ],
)
def test_invalid_settings(settings, text):
    with pytest.raises(ValueError, match=text):
        Algorithm(**{"steps": 1, "total_steps": 1, **settings})


def test_the_decisions():
    """Every state of a worker, and its next action."""
    waits, overlaps = Algorithm(steps=3, total_steps=9), Algorithm(steps=3, total_steps=9, overlap=True)
    delayed = Algorithm(steps=3, total_steps=9, delay=2)
    for steps in range(4):
        for in_flight in (False, True):
            for arrived in (False, True):
                expected = Act.APPLY if in_flight else Act.SEND if steps == 3 else Act.STEP
                assert decide(waits, steps, in_flight, arrived) is expected
                if in_flight and steps < 2:
                    expected = Act.STEP
                assert decide(delayed, steps, in_flight, arrived) is expected
                if steps == 0 or (in_flight and not (arrived or steps == 3)):
                    expected = Act.STEP
                else:
                    expected = Act.APPLY if in_flight else Act.SEND
                assert decide(overlaps, steps, in_flight, arrived) is expected


@pytest.mark.parametrize(
    ("sizes", "fragments", "wanted"),
    [
        ([5], 1, [1]),
        ([1, 1, 1, 1], 2, [2, 2]),
        ([24, 6, 6, 6, 18], 3, [1, 3, 1]),
        ([1, 1, 100, 1], 3, [2, 1, 1]),
        ([100, 1, 1], 3, [1, 1, 1]),
        ([1, 1, 100], 3, [1, 1, 1]),
        ([7, 7, 7, 7, 7], 2, [2, 3]),
    ],
)
def test_the_cut_into_fragments(sizes, fragments, wanted):
    assert [len(sizes[part]) for part in cut(sizes, fragments)] == wanted


def test_a_cut_leaves_nothing_out_and_no_fragment_empty():
    dice = random.Random(1)
    for _ in range(300):
        sizes = [dice.choice([1, 10, 1000]) for _ in range(dice.randint(1, 12))]
        fragments = dice.randint(1, len(sizes))
        parts = [sizes[part] for part in cut(sizes, fragments)]
        assert [size for part in parts for size in part] == sizes
        assert len(parts) == fragments
        assert all(parts)
    with pytest.raises(ValueError, match="fragments=3, but the model has only 2 parameters"):
        cut([1, 1], 3)
