"""The backend of torch.distributed when a member of a group dies or is late: an error that names it, and no hang."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch_failures  # noqa: E402
import torch_group  # noqa: E402

pytestmark = pytest.mark.demo


def survivors(folder, program, ranks, dead):
    """The results of those that live."""
    processes = torch_group.start(folder, program, ranks)
    outcomes = [process.communicate(timeout=100)[1] for process in processes]
    assert processes[dead].returncode == -9
    living = [rank for rank in range(ranks) if rank != dead]
    for rank in living:
        assert processes[rank].returncode == 0, outcomes[rank]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in living]


def test_a_member_dies(tmp_path):
    for result in survivors(tmp_path, torch_failures.a_member_dies, 3, dead=1):
        (wait, rank, text), (future, _, other_text), (later, later_rank, _) = result
        assert (wait, rank) == (later, later_rank) == ("NodeLostError", 1)
        assert "rank 1 was lost" in text
        assert future == "RuntimeError"  # PyTorch's, around it
        assert "rank 1 was lost" in other_text


def test_the_member_with_the_scheduler_dies(tmp_path):
    for [(kind, rank, text)] in survivors(tmp_path, torch_failures.the_first_member_dies, 3, dead=0):
        assert (kind, rank) == ("NodeLostError", 0), text
        assert "rank 0" in text


def test_the_other_end_of_a_message_dies(tmp_path):
    result, _ = survivors(tmp_path, torch_failures.the_other_end_of_a_message_dies, 3, dead=1)
    for kind, rank, text in result:
        assert (kind, rank) == ("NodeLostError", 1), text


def test_a_member_is_late(tmp_path):
    first, second, third = torch_group.run(tmp_path, torch_failures.a_member_is_late, 3)
    assert first[0] == second[0] == third[0] == [6.0, 6.0, 6.0]
    for _, (kind, _, text) in (first, third):
        assert kind == "TimeoutError"
        assert "missing: rank 1" in text
