"""Parts of timelines made by hand, for tests that need no cluster."""

import numpy as np

from fptps._timeline.part import EVENT, FORMAT, NO_TENSOR, Kind, Part

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


MS = 1_000_000
PACKET = 16384


class Scene:
    """A training that is played without a cluster, on links and processors as simple as possible, and its parts.

    workers: how many. tensors: (packets, priority) of each; a step calls all of them at once, and then waits for each
    in order, with `between` ms of computing after each. compute, idle: ms of each worker's program before it calls; a
    list has one for each worker. mbit: the rate of each node's link, by its name; "" is that of the others. sums: ms
    for which an aggregator's thread is busy with a packet. share: the server's of the summing; the workers share the
    rest.
    """

    def __init__(
        self, workers=3, tensors=((8, 0),) * 3, compute=20, idle=0, between=0, mbit=None, sums=0.01, share=1.0
    ):
        self.workers = [f"worker {rank}" for rank in range(workers)]
        self.nodes = ["server 0", *self.workers]
        self.tensors, self.between, self.sums, self.share = tensors, between, sums, share
        self.compute = compute if isinstance(compute, list) else [compute] * workers
        self.idle = idle if isinstance(idle, list) else [idle] * workers
        self.mbit = {"": 1000, **(mbit or {})}
        self.events = {name: [] for name in self.nodes}
        self.free = {(name, way): 0.0 for name in self.nodes for way in ("up", "down", "loop")}
        self.moved = {name: [] for name in self.nodes}  # kind, peer, from, until
        self.busy = {name: [] for name in self.nodes}
        self.ran = {name: [] for name in self.nodes}

    def play(self, steps=6):
        """Plays the steps; the parts of all nodes."""
        now = dict.fromkeys(self.workers, 0.0)
        for round in range(1, steps + 1):
            now = self.step(round, now)
        end = max(now.values())
        for name in self.nodes:
            self.sample(name, end)
        known = [{"id": i, "name": f"layer {i}", "bytes": n * PACKET} for i, (n, _) in enumerate(self.tensors)]
        rest = (1 - self.share) / len(self.workers)
        shares = [{"node": name, "part": rest if name in self.workers else self.share} for name in self.nodes]
        about = {"tensors": known, "per_step": len(self.tensors), "shares": shares}
        return [part("scheduler"), *(part(name, self.events[name], **about) for name in self.nodes)]

    def step(self, round, now):
        """One step, from when each worker is at its beginning; when it is at the end."""
        called = {}
        for rank, name in enumerate(self.workers):
            begun = now[name] + self.idle[rank] * MS
            called[name] = begun + self.compute[rank] * MS
            self.ran[name].append((begun, called[name]))
        order = sorted(range(len(self.tensors)), key=lambda i: (-self.tensors[i][1], i))
        summed, arrived = {}, {}
        for name in sorted(self.workers, key=lambda name: called[name]):
            for tensor in order:
                self.note(name, called[name], Kind.CALLED, tensor, round, self.tensors[tensor][1] % 2**32, PACKET, "")
            for tensor, packet in self.packets(order):
                to = self.aggregator(tensor, packet)
                self.note(name, called[name], Kind.QUEUED, tensor, round, packet, PACKET, to)
                read = called[name]
                if to != name:
                    read = self.carry(name, to, called[name], (Kind.WRITTEN, Kind.READ), tensor, round, packet)
                summed.setdefault((tensor, packet), []).append((self.sum(to, read), name))
        for (tensor, packet), contributions in summed.items():
            contributions.sort()
            at = self.aggregator(tensor, packet)
            for time, name in contributions:
                self.note(at, time, Kind.SUMMED, tensor, round, packet, PACKET, name)
            complete, last = contributions[-1]
            self.note(at, complete, Kind.COMPLETE, tensor, round, packet, PACKET, last)
        for tensor, packet in sorted(summed, key=lambda key: (-self.tensors[key[0]][1], max(summed[key]))):
            at, complete = self.aggregator(tensor, packet), max(summed[tensor, packet])[0]
            for name in self.workers:
                read = complete
                if at != name:
                    self.note(at, complete, Kind.SUM_QUEUED, tensor, round, packet, PACKET, name)
                    read = self.carry(at, name, complete, (Kind.SUM_WRITTEN, Kind.SUM_READ), tensor, round, packet)
                arrived[name, tensor] = max(read, arrived.get((name, tensor), 0))
        return {name: self.wait(name, round, called[name], arrived) for name in self.workers}

    def packets(self, order):
        return [(tensor, packet) for tensor in order for packet in range(self.tensors[tensor][0])]

    def aggregator(self, tensor, packet):
        by_server = packet < self.share * self.tensors[tensor][0]
        return "server 0" if by_server else self.workers[packet % len(self.workers)]

    def carry(self, a, b, queued, kinds, *about):
        """A packet on its way from a to b: when it is read."""
        ns = [PACKET * 8000 / self.mbit.get(name, self.mbit[""]) for name in (a, b)]
        written = self.free[a, "up"] = max(queued, self.free[a, "up"]) + ns[0]
        read = self.free[b, "down"] = max(written + 20_000 - ns[1], self.free[b, "down"]) + ns[1]
        self.moved[a].append((Kind.SENT, b, written - ns[0], written))
        self.moved[b].append((Kind.RECEIVED, a, read - ns[1], read))
        self.note(a, written, kinds[0], *about, PACKET, b)
        self.note(b, read, kinds[1], *about, PACKET, a)
        return read

    def sum(self, name, read):
        begun = max(read, self.free[name, "loop"])
        done = self.free[name, "loop"] = begun + self.sums * MS
        self.busy[name].append((begun, done))
        return done

    def wait(self, name, round, now, arrived):
        """The program waits for each tensor in order; when it has all."""
        for tensor in range(len(self.tensors)):
            self.note(name, arrived[name, tensor], Kind.DONE, tensor, round, 0, 0, "")
            if arrived[name, tensor] > now:
                us = (arrived[name, tensor] - now) / 1000
                self.note(name, now, Kind.WAITED, tensor, 0, 0, us, "")
                now = arrived[name, tensor]
            self.ran[name].append((now, now + self.between * MS))
            now += self.between * MS
        return now

    def sample(self, name, end, every=5 * MS):
        """The samples of a node's counters."""
        begins = np.arange(0, end, every)

        def overlap(spans):
            total = np.zeros(len(begins))
            for from_, until in spans:
                touched = slice(int(from_ // every), int(until // every) + 1)
                left, right = np.maximum(begins[touched], from_), np.minimum(begins[touched] + every, until)
                total[touched] += np.maximum(right - left, 0)
            return total

        counted = [
            (Kind.PROCESSOR, "", overlap(self.ran[name]) / 1000),
            (Kind.LOOP, "", overlap(self.busy[name]) / 1000),
        ]
        for link in {moved[:2] for moved in self.moved[name]}:
            spans = [moved[2:] for moved in self.moved[name] if moved[:2] == link]
            counted.append((*link, overlap(spans) * PACKET / (spans[0][1] - spans[0][0])))
        for kind, peer, counts in counted:
            for begin, count in zip(begins, counts):
                self.note(name, begin, kind, NO_TENSOR, 0, every / 1000, count, peer)

    def note(self, name, time, kind, tensor, round, packet, size, peer):
        self.events[name].append((int(time), kind, tensor, round, int(packet), int(size), peer))
