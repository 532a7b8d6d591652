"""What test_torch_backend.py runs in every process of a group: each call against a second computation in plain PyTorch.

The values of every rank are known to all, by value(rank, ...), so that each computes what it has to receive.
"""

from __future__ import annotations

import functools
import random

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch_group import checked

COUNTS = [1, 5, 4096, 4099, 20_000, 300_001]
"""Less than a packet, a packet, some packets and a part of one."""

DTYPES = [
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


def value(rank, count, dtype=torch.float32, salt=0):
    """Whole numbers, other ones on every rank, small enough for sums and products of all ranks to be exact."""
    numbers = (torch.arange(count) * (rank + 1) + 3 * rank + salt) % 7 - 3
    if dtype is torch.uint8:
        numbers = numbers + 3
    return (numbers % 3 == 0) if dtype is torch.bool else numbers.to(dtype)


def strange(rank, count):
    """Floats with every pattern of bits: NaNs with payloads, negative zeros, denormals."""
    source = torch.Generator().manual_seed(rank)
    bits = torch.randint(-(2**31), 2**31 - 1, (count,), generator=source, dtype=torch.int32)
    bits[0] = -(2**31)  # -0.0
    return bits.view(torch.float32)


def same_bits(got, wanted):
    assert torch.equal(got.view(torch.int32), wanted.view(torch.int32))


def here():
    return dist.get_rank(), dist.get_world_size()


def all_of(count, dtype=torch.float32, salt=0):
    return [value(rank, count, dtype, salt) for rank in range(here()[1])]


def sums_of_every_dtype():
    me, _ = here()
    for dtype in DTYPES:
        for count in COUNTS[:4]:
            tensor = value(me, count, dtype)
            dist.all_reduce(tensor)
            wanted = functools.reduce(torch.logical_or if dtype is torch.bool else torch.add, all_of(count, dtype))
            assert torch.equal(tensor, wanted), (dtype, count)


def sums_and_means_of_every_length():
    me, size = here()
    for count in COUNTS:
        tensor, mean = value(me, count), value(me, count, salt=1)
        dist.all_reduce(tensor)
        dist.all_reduce(mean, op=ReduceOp.AVG)
        assert torch.equal(tensor, sum(all_of(count)))
        assert torch.equal(mean, sum(all_of(count, salt=1)) / size)


def other_reductions():
    me, _ = here()
    for op, function in [
        (ReduceOp.MIN, torch.minimum), (ReduceOp.MAX, torch.maximum), (ReduceOp.PRODUCT, torch.mul),
        (ReduceOp.BAND, torch.bitwise_and), (ReduceOp.BOR, torch.bitwise_or), (ReduceOp.BXOR, torch.bitwise_xor),
    ]:  # fmt: skip
        for count in (1, 4099):
            tensor = value(me, count, torch.int64)
            dist.all_reduce(tensor, op=op)
            assert torch.equal(tensor, functools.reduce(function, all_of(count, torch.int64))), op


def shapes_and_layouts():
    me, size = here()
    scalar, image, gaps = torch.tensor(float(me)), torch.ones(2, 3, 4, 5), torch.zeros(6, 4)
    image = (image * (me + 1)).to(memory_format=torch.channels_last)
    gaps[::2] = me + 1
    for tensor in (scalar, image, gaps[::2], gaps.t()[:, 1::2], torch.empty(0)):
        dist.all_reduce(tensor)
    total = size * (size + 1) / 2
    assert scalar == total - size
    assert torch.equal(image, torch.full((2, 3, 4, 5), total))
    assert torch.equal(gaps[::2], torch.full((3, 4), total))
    assert not gaps[1::2].any()


def a_leaf_that_requires_grad():
    me, size = here()
    leaf = torch.full((5,), float(me), requires_grad=True)
    dist.broadcast(leaf, size - 1)
    assert torch.equal(leaf, torch.full((5,), size - 1.0))
    with torch.no_grad():
        dist.all_reduce(leaf)
    assert torch.equal(leaf, torch.full((5,), size * (size - 1.0)))


def broadcasts():
    me, size = here()
    for root in range(size):
        for count in COUNTS:
            tensor = strange(me, count)
            dist.broadcast(tensor, root)
            same_bits(tensor, strange(root, count))


def reduces():
    me, size = here()
    for op, function in [(ReduceOp.SUM, torch.add), (ReduceOp.MAX, torch.maximum)]:
        for root in range(size):
            tensor = value(me, 4099)
            dist.reduce(tensor, root, op=op)
            wanted = functools.reduce(function, all_of(4099)) if me == root else value(me, 4099)
            assert torch.equal(tensor, wanted)


def all_gathers():
    me, size = here()
    for count in COUNTS:
        outputs = [torch.empty(count) for _ in range(size)]
        dist.all_gather(outputs, strange(me, count))
        whole = torch.empty(size * count)
        dist.all_gather_into_tensor(whole, strange(me, count))
        for rank in range(size):
            same_bits(outputs[rank], strange(rank, count))
            same_bits(whole[rank * count :][:count], strange(rank, count))


def all_gathers_of_other_lengths():
    me, size = here()
    outputs = [torch.empty(5000 * rank + 1) for rank in range(size)]
    dist.all_gather(outputs, strange(me, 5000 * me + 1))
    for rank in range(size):
        same_bits(outputs[rank], strange(rank, 5000 * rank + 1))


def reduce_scatters():
    me, size = here()
    for op, function in [(ReduceOp.SUM, torch.add), (ReduceOp.MIN, torch.minimum)]:
        for count in COUNTS:
            output, listed = torch.empty(count), torch.empty(count)
            dist.reduce_scatter_tensor(output, value(me, size * count), op=op)
            dist.reduce_scatter(listed, list(value(me, size * count).view(size, count)), op=op)
            wanted = functools.reduce(function, all_of(size * count))[me * count :][:count]
            assert torch.equal(output, wanted)
            assert torch.equal(listed, wanted)


def gathers_and_scatters():
    me, size = here()
    for root in range(size):
        for count in COUNTS:
            parts = [torch.empty(count) for _ in range(size)] if me == root else None
            dist.gather(strange(me, count), parts, dst=root)
            for rank, part in enumerate(parts or []):
                same_bits(part, strange(rank, count))
            output = torch.empty(count)
            dist.scatter(output, [strange(10 * r, count) for r in range(size)] if me == root else None, src=root)
            same_bits(output, strange(10 * me, count))


def all_to_alls():
    me, size = here()
    for count in (1, 3000):
        output = torch.empty(size * count, 2)
        dist.all_to_all_single(output, value(me, 2 * size * count).view(-1, 2))
        wanted = [value(rank, 2 * size * count).view(size, count, 2)[me] for rank in range(size)]
        assert torch.equal(output, torch.cat(wanted))
        # Rank a sends a + 2b + 1 rows to rank b, and none where that is 1.
        rows = [[0 if a == b == 0 else (a + 2 * b + 1) * count for b in range(size)] for a in range(size)]
        mine, theirs = rows[me], [row[me] for row in rows]
        sent = [value(me, 3 * n, salt=b).view(n, 3) for b, n in enumerate(mine)]
        wanted = [value(a, 3 * n, salt=me).view(n, 3) for a, n in enumerate(theirs)]
        output, outputs = torch.empty(sum(theirs), 3), [torch.empty(n, 3) for n in theirs]
        dist.all_to_all_single(output, torch.cat(sent), theirs, mine)
        dist.all_to_all(outputs, sent)
        assert torch.equal(output, torch.cat(wanted))
        assert all(map(torch.equal, outputs, wanted))


def objects():
    me, size = here()
    listed, gathered = [None] * size, [None] * size if me == 1 else None
    dist.all_gather_object(listed, {"rank": me, "text": "x" * 3000 * me})
    dist.gather_object(("from", me), gathered, dst=1)
    shared = [{"root": me}, me] if me == 2 else [None, None]
    dist.broadcast_object_list(shared, src=2)
    assert listed == [{"rank": rank, "text": "x" * 3000 * rank} for rank in range(size)]
    assert gathered == ([("from", rank) for rank in range(size)] if me == 1 else None)
    assert shared == [{"root": 2}, 2]


def messages():
    me, size = here()
    for count in COUNTS:  # around the ring
        if me == 0:
            dist.send(strange(0, count), 1)
        tensor = torch.empty(count)
        dist.recv(tensor, (me - 1) % size)
        same_bits(tensor, strange(0, count))
        if me != 0:
            dist.send(tensor, (me + 1) % size)
    if me == 0:
        works = [dist.isend(value(0, 5000, salt=tag), 2, tag=tag) for tag in (3, 1, 2)]
    if me == 2:
        tensors = {tag: torch.empty(5000) for tag in (1, 2, 3)}
        works = [dist.irecv(tensor, 0, tag=tag) for tag, tensor in tensors.items()]
    if me in (0, 2):
        for work in works:
            work.wait()
    if me == 2:
        for tag, tensor in tensors.items():
            assert torch.equal(tensor, value(0, 5000, salt=tag))


def messages_to_all_at_once():
    me, size = here()
    others = [rank for rank in range(size) if rank != me]
    into = {rank: torch.empty(7000) for rank in others}
    calls = [dist.P2POp(dist.isend, value(me, 7000, salt=rank), rank) for rank in others]
    calls += [dist.P2POp(dist.irecv, into[rank], rank) for rank in others]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    for rank in others:
        assert torch.equal(into[rank], value(rank, 7000, salt=me))


def groups_of_some_ranks():
    """Those that are in no group take no part, and those in two groups use them in any order."""
    me, _ = here()
    groups = {ranks: dist.new_group(list(ranks)) for ranks in [(1, 2), (0, 2), (2,)]}
    mine = [ranks for ranks in groups if me in ranks]
    random.Random(me).shuffle(mine)
    works = []
    for ranks in mine:
        for count in (5000, 1):
            tensor = value(me, count, salt=len(ranks))
            works.append((dist.all_reduce(tensor, group=groups[ranks], async_op=True), tensor, ranks, count))
    for work, tensor, ranks, count in reversed(works):
        work.wait()
        assert torch.equal(tensor, sum(value(rank, count, salt=len(ranks)) for rank in ranks))
    for ranks in mine:
        tensor = strange(me, 10)
        dist.broadcast(tensor, ranks[-1], group=groups[ranks])
        same_bits(tensor, strange(ranks[-1], 10))
        dist.destroy_process_group(groups[ranks])


def many_under_way():
    """Sums of all lengths, and operations between them, issued without waiting; then futures."""
    me, size = here()
    works = []
    for index in range(60):
        count = COUNTS[index % 5]
        tensor = value(me, count, salt=index)
        if index % 4:
            work, wanted = dist.all_reduce(tensor, async_op=True), sum(all_of(count, salt=index))
        else:
            work = dist.broadcast(tensor, index % size, async_op=True)
            wanted = value(index % size, count, salt=index)
        works.append((work, tensor, wanted))
    for index, (work, tensor, wanted) in enumerate(reversed(works)):
        assert work.wait() if index % 2 else work.get_future().wait()[0] is not None
        assert torch.equal(tensor, wanted)


def the_same_memory_twice():
    me, size = here()
    tensor = value(me, 30_000)
    works = [dist.all_reduce(tensor[:20_000], async_op=True), dist.all_reduce(tensor[10_000:], async_op=True)]
    works.append(dist.broadcast(tensor, 1, async_op=True))
    for work in works:
        work.wait()
    wanted = sum(all_of(30_000))
    wanted[10_000:20_000] *= size
    assert torch.equal(tensor, wanted)


def no_tensor_is_declared_twice():
    me, _ = here()
    kv = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))._membership.kv

    def step():
        for count in COUNTS:
            dist.all_reduce(value(me, count))
            dist.broadcast(value(me, count), 0)
        return kv.stats().tensors

    assert step() == step()


def coalesced():
    me, size = here()
    tensors = [value(me, count) for count in COUNTS]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    parts, outputs = [value(me, n) for n in COUNTS], [torch.empty(size * n) for n in COUNTS]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, part in zip(outputs, parts):
            dist.all_gather_into_tensor(output, part)
    manager.wait()
    wholes, mine = [value(me, size * n) for n in COUNTS], [torch.empty(n) for n in COUNTS]
    with dist._coalescing_manager():
        for output, whole in zip(mine, wholes):
            dist.reduce_scatter_tensor(output, whole)
    for index, count in enumerate(COUNTS):
        assert torch.equal(tensors[index], sum(all_of(count)))
        assert torch.equal(outputs[index], torch.cat(all_of(count)))
        assert torch.equal(mine[index], sum(all_of(size * count))[me * count :][:count])


def refuses(kind, text, call):
    with pytest.raises(kind, match=text):
        call()


def refusals():
    """Each on all ranks, before anything is sent: the group goes on."""
    _, size = here()
    x, whole = torch.ones(3), torch.ones(3, dtype=torch.int64)
    scaled = dist._make_nccl_premul_sum(2.0)
    refuses(NotImplementedError, "PREMUL_SUM", lambda: dist.all_reduce(x, op=scaled))
    refuses(TypeError, "AVG of torch.int64", lambda: dist.all_reduce(whole, op=ReduceOp.AVG))
    refuses(TypeError, "cannot sum torch.float8_e5m2", lambda: dist.all_reduce(x.to(torch.float8_e5m2)))
    refuses(NotImplementedError, "layout torch.sparse_coo", lambda: dist.all_reduce(x.to_sparse()))
    refuses(ValueError, "2 tensors", lambda: dist.group.WORLD.allreduce([x, x], dist.AllreduceOptions()))
    refuses(NotImplementedError, "pass src", lambda: dist.recv(x))
    refuses(ValueError, "2 rows cannot be split", lambda: dist.all_to_all_single(torch.ones(3)[1:], x[1:]))
    refuses(ValueError, "split sizes", lambda: dist.all_to_all_single(x, x, [1] * (size - 1) + [9], [1] * size))
    refuses(
        (ValueError, RuntimeError), "size|elements", lambda: dist.all_gather_into_tensor(torch.ones(size * 3 + 1), x)
    )
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((3,), float(size)))


CALLS = [
    sums_of_every_dtype, sums_and_means_of_every_length, other_reductions, shapes_and_layouts,
    a_leaf_that_requires_grad, broadcasts, reduces, all_gathers, all_gathers_of_other_lengths, reduce_scatters,
    gathers_and_scatters, all_to_alls, objects, messages, messages_to_all_at_once, groups_of_some_ranks,
    many_under_way, the_same_memory_twice, no_tensor_is_declared_twice, coalesced, refusals,
]  # fmt: skip


def all_calls():
    failed = checked(CALLS)
    dist.barrier()
    return failed
