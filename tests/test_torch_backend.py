"""The backend of torch.distributed: every call in a group of three processes, against plain PyTorch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch_calls
import torch_group

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """By rank: the calls that failed, with their tracebacks."""
    return torch_group.run(tmp_path_factory.mktemp("calls"), torch_calls.all_calls, 3)


@pytest.mark.parametrize("call", [function.__name__ for function in torch_calls.CALLS])
def test_call(failed, call):
    texts = [f"rank {rank}: {calls[call]}" for rank, calls in enumerate(failed) if call in calls]
    assert not texts, "\n".join(texts)
