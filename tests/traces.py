"""Parts of timelines made by hand, for tests that need no cluster."""

import numpy as np

from fptps._timeline.part import EVENT, FORMAT, Part

SCHEDULER = 1
IDS = {
    "scheduler": SCHEDULER,
    **{f"server {r}": 8 + 2 * r for r in range(4)},
    **{f"worker {r}": 9 + 2 * r for r in range(8)},
}


def part(name, events=(), host="a", **head):
    """A node's part. events: tuples (time in ns, kind, tensor, round, packet, bytes, peer's name), in any order."""
    list_ = np.array(
        sorted(
            (t, tensor, round, packet, size, IDS.get(peer, 0), kind)
            for t, kind, tensor, round, packet, size, peer in events
        ),
        EVENT,
    )
    known = {
        "format": FORMAT,
        "role": name.split()[0],
        "id": IDS[name],
        "name": name,
        "host_name": host,
        "host_id": host,
        "pid": IDS[name] + 100,
        "address": "",
        "sampling": 1,
        "lost": 0,
        "from": 0,
        "clock": [],
        "tensors": [],
        "per_step": 0,
        "link_rate": 0,
        "shares": [],
    }
    return Part({**known, **head}, list_)
