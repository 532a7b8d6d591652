"""The backend of torch.distributed: every call in a group of three processes, against plain PyTorch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch_calls
import torch_group

from fptps.torch._backend._pieces import cut

pytestmark = pytest.mark.demo


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """By rank: the calls that failed, with their tracebacks."""
    return torch_group.run(tmp_path_factory.mktemp("calls"), torch_calls.all_calls, 3)


@pytest.mark.parametrize("call", [function.__name__ for function in torch_calls.CALLS])
def test_call(failed, call):
    texts = [f"rank {rank}: {calls[call]}" for rank, calls in enumerate(failed) if call in calls]
    assert not texts, "\n".join(texts)


@pytest.mark.parametrize("itemsize", [1, 4, 16])
@pytest.mark.parametrize("largest", [1 << 20, 1 << 40])
def test_pieces_have_few_lengths(itemsize, largest):
    """Powers of two, each once but for the largest; only the last piece is longer than its part of the tensor."""
    lengths = set()
    for count in [*range(1, 70), *range(1000, 10_000_000, 77_777), 1 << 14, (1 << 20) - 1]:
        pieces = list(cut(count, itemsize, largest))
        assert [piece.begin for piece in pieces] + [count] == [0] + [piece.end for piece in pieces]
        assert all(piece.size == piece.end - piece.begin for piece in pieces[:-1])
        assert all(piece.size & (piece.size - 1) == 0 and piece.size * itemsize <= largest for piece in pieces)
        assert sum(piece.size * itemsize for piece in pieces) < count * itemsize + (1 << 14)
        below = [piece.size for piece in pieces[:-1] if piece.size * itemsize < largest]
        assert below == sorted(set(below), reverse=True)
        lengths |= {piece.size for piece in pieces}
    assert len(lengths) < 28
