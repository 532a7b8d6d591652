"""Programs of test_torch_failures.py: a member of a group dies, is late, or makes another call."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist


def failure_of(call):
    """How a call ends: the name of its exception's class, its rank and its text."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, getattr(error, "rank", None), str(error)
    return None


def die(rank):
    """Ends a rank once all others have come here too, without a call of the group."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"alive {dist.get_rank()}", "")
    if dist.get_rank() == rank:
        store.wait([f"alive {other}" for other in range(dist.get_world_size())])
        os.kill(os.getpid(), signal.SIGKILL)


def a_member_dies():
    """What the others get: from a call, from a future of a call before the death, and from a call afterwards."""
    group = dist.new_group([0, 2])
    x = torch.ones(50_000)
    if dist.get_rank() != 1:
        work = dist.all_reduce(x.clone(), async_op=True)
        future = work.get_future()
    die(1)
    result = [failure_of(work.wait), failure_of(future.wait), failure_of(lambda: dist.all_reduce(x))]
    whole = x * (dist.get_rank() + 1)
    dist.all_reduce(whole, group=group)  # of the living
    assert torch.equal(whole, 4 * x)
    return result


def the_first_member_dies():
    die(0)
    return [failure_of(lambda: dist.all_reduce(torch.ones(1)))]


def the_other_end_of_a_message_dies():
    tensor = torch.ones(1)
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0)
    die(1)
    if dist.get_rank() == 0:
        return [failure_of(lambda: dist.recv(tensor, 1)), failure_of(lambda: dist.send(tensor, 1))]
    return []


def a_member_is_late():
    """Rank 1 comes once the others have given up, and all get the sum after all."""
    x = torch.full((3,), dist.get_rank() + 1.0)
    early = dist.new_group([0, 2])
    dist.all_reduce(torch.zeros(4))  # so that the tensors of these lengths are declared
    if dist.get_rank() == 1:
        dist.recv(torch.empty(1), 0)
        dist.all_reduce(x)
        return [x.tolist()]
    work = dist.all_reduce(x, async_op=True)
    result = failure_of(lambda: work.wait(timedelta(seconds=1.5)))
    dist.barrier(early)
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), 1)
    work.wait()
    return [x.tolist(), result]
