"""What a process group of torch.distributed does over fptps: each call as an operation of the group's Line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from .._meeting import Place
from ._line import Line
from ._memory import Memory, bytes_of, one, same
from ._messages import Message, Peer
from ._operation import Operation, Transfer, Verb
from ._reduction import SUMS, name_of, reduced
from ._rendezvous import join
from ._work import Together, Work

Tensor = torch.Tensor


class Member:
    """A member of a process group. PyTorch gets it as one of its own classes: see _as_backend and _as_group.

    The calls are those of torch.distributed's C++ (Backend.hpp), which checks most arguments. Every call begins an
    operation and returns its Work. All members make the same calls in the same order. Sums and means leave and arrive
    straight from and in the tensors of the CPU; others are put together from the transfers of _operation.Verb.
    """

    def __init__(self, place: Place, default: bool) -> None:
        self._place = place
        self._me = place.rank
        self._members = range(len(place.ranks))
        self._seconds = place.seconds
        self._membership = join(place, default)
        tensors = self._membership.kv.namespace("torch.distributed")
        self._line = Line(tensors, place.seconds)
        self._peers: dict[int, Peer] = {}
        self._together: list[Work] | None = None  # what was begun since start_coalescing()

    def getBackendName(self) -> str:
        return "fptps"

    @property
    def supports_coalescing(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leaves the group in good order, in the background: it needs the others, which may do something else first."""
        for peer in self._peers.values():
            peer.leave()
        self._membership.leave()

    def abort(self) -> None:
        """Leaves the group at once; the others see this member as lost."""
        for peer in self._peers.values():
            peer.abort()
        self._membership.abort()

    # Sums and other reductions

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        one(tensors, "all_reduce")
        return self._reduce("all_reduce", tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        return self._reduce("all_reduce", tensors, opts)

    def _reduce(self, call: str, tensors: Sequence[Tensor], opts: Any) -> Work:
        memory = Memory()
        flats = [memory.change(tensor) for tensor in tensors]
        return self._reduce_flats(call, flats, opts, tensors, memory.restore)

    def _reduce_flats(
        self, call: str, flats: Sequence[Tensor], opts: Any, tensors: Sequence[Tensor], finish: Callable[[], object]
    ) -> Work:
        """Reduces flat memory in place, on all members."""
        names = {name_of(opts.reduceOp, flat.dtype, call) for flat in flats}
        name = names.pop() if names else "SUM"
        if name in SUMS:
            return self._begin(call, [Transfer(SUMS[name], flat) for flat in flats], tensors, opts, finish)
        rows = [flat.new_empty((len(self._members), len(flat))) for flat in flats]
        transfers = [t for flat, row in zip(flats, rows) for t in self._gathering(flat, list(row))]

        def reduce_all() -> None:
            for flat, row in zip(flats, rows):
                row[self._me] = flat
                flat.copy_(reduced(name, row))
            finish()

        return self._begin(call, transfers, tensors, opts, reduce_all)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        tensor = one(tensors, "reduce")
        if opts.rootRank == self._me:
            return self._reduce("reduce", tensors, opts)
        return self._reduce("reduce", [tensor.detach().clone()], opts)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        output, parts = one(outputs, "reduce_scatter"), inputs[0]
        self._check_count(parts, "reduce_scatter")
        same([output], parts[self._me], "reduce_scatter")
        return self._reduce_scatter([output], [[part.reshape(-1) for part in parts]], opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        call = "reduce_scatter_tensor"
        return self._reduce_scatter(outputs, [self._parts(i, o, call) for i, o in zip(inputs, outputs)], opts)

    def _reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Reduces all parts on all members, each of which keeps its own part."""
        memory = Memory()
        sums = [torch.cat([memory.read(part) for part in parts]) for parts in inputs]
        begins = [sum(part.numel() for part in parts[: self._me]) for parts in inputs]

        def keep() -> None:
            for output, flat, begin in zip(outputs, sums, begins):
                output.detach().copy_(flat[begin : begin + output.numel()].view(output.shape))

        return self._reduce_flats("reduce_scatter", sums, opts, outputs, keep)

    # Values as they are, bit for bit

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        tensor, memory = one(tensors, "broadcast"), Memory()
        root = opts.rootRank == self._me
        flat = memory.read(tensor) if root else memory.change(tensor)
        transfer = Transfer(Verb.SEND if root else Verb.RECEIVE, bytes_of(flat))
        return self._begin("broadcast", [transfer], tensors, opts, memory.restore)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        return self._gather_all("all_gather", outputs, inputs, opts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        # The lists are by member here: outputs[member][index].
        by_input = [list(row) for row in zip(*outputs)]
        return self._gather_all("all_gather_coalesced", by_input, inputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        call = "all_gather_into_tensor"
        memory = Memory()
        flats = [memory.change(output) for output in outputs]
        parts = [self._parts(flat, input, call) for flat, input in zip(flats, inputs)]
        return self._gather_all(call, parts, inputs, opts, memory, outputs)

    def _gather_all(
        self,
        call: str,
        outputs: Sequence[list[Tensor]],
        inputs: Sequence[Tensor],
        opts: Any,
        memory: Memory | None = None,
        results: Sequence[Tensor] | None = None,
    ) -> Work:
        """outputs[i][m] receives inputs[i] of member m. They may be of different lengths, which all members know."""
        memory = memory or Memory()
        transfers: list[Transfer] = []
        own: list[tuple[Tensor, Tensor]] = []
        for parts, input in zip(outputs, inputs):
            self._check_count(parts, call)
            same([parts[self._me]], input, call)
            rows = [memory.change(part) for part in parts]
            transfers += self._gathering(memory.read(input), rows)
            own.append((rows[self._me], memory.read(input)))
        for row, flat in own:
            row.copy_(flat)
        everything = [part for parts in outputs for part in parts]
        return self._begin(call, transfers, results or everything, opts, memory.restore)

    def _gathering(self, flat: Tensor, rows: Sequence[Tensor]) -> list[Transfer]:
        """rows[m] receives the flat memory of member m; this member's own row is left as it is."""
        return [
            Transfer(Verb.SEND, bytes_of(flat)) if m == self._me else Transfer(Verb.RECEIVE, bytes_of(row))
            for m, row in enumerate(rows)
        ]

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        input = one(inputs, "gather")
        if opts.rootRank == self._me:
            same(outputs[0], input, "gather")
            return self._gather_all("gather", outputs, inputs, opts)
        flat = bytes_of(Memory().read(input))
        verbs = [Verb.SEND if m == self._me else Verb.IGNORE for m in self._members]
        return self._begin("gather", [Transfer(verb, flat) for verb in verbs], [], opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        output, memory = one(outputs, "scatter"), Memory()
        flat = memory.change(output)
        if opts.rootRank != self._me:
            verbs = [Verb.RECEIVE if m == self._me else Verb.IGNORE for m in self._members if m != opts.rootRank]
            transfers = [Transfer(verb, bytes_of(flat)) for verb in verbs]
        else:
            parts = inputs[0]
            self._check_count(parts, "scatter")
            same(parts, output, "scatter")
            flat.copy_(memory.read(parts[self._me]))
            others = [part for m, part in enumerate(parts) if m != self._me]
            transfers = [Transfer(Verb.SEND, bytes_of(memory.read(part))) for part in others]
        return self._begin("scatter", transfers, outputs, opts, memory.restore)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        self._check_count(outputs, "all_to_all")
        self._check_count(inputs, "all_to_all")
        return self._exchange("all_to_all", outputs, inputs, outputs, opts, Memory(), even=False)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any
    ) -> Work:
        call = "all_to_all_single"
        memory = Memory()
        flat = memory.change(output)
        into = self._split(flat, output_sizes, len(output), call)
        out = self._split(memory.read(input), input_sizes, len(input), call)
        even = not output_sizes and not input_sizes
        return self._exchange(call, into, out, [output], opts, memory, even)

    def _split(self, flat: Tensor, sizes: list[int], rows: int, call: str) -> list[Tensor]:
        """The part of each member: so many rows, or without sizes all the same."""
        count = len(self._members)
        if not sizes:
            if rows % count:
                raise ValueError(f"{call}: {rows} rows cannot be split evenly among {count} members: pass split sizes")
            return list(flat.view(count, -1))
        if len(sizes) != count or sum(sizes) != rows:
            raise ValueError(
                f"{call}: split sizes {sizes} of {rows} rows: {count} sizes that add up to them are expected"
            )
        row = len(flat) // max(1, rows)
        return list(torch.split_with_sizes(flat, [size * row for size in sizes]))

    def _exchange(
        self,
        call: str,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        results: Sequence[Tensor],
        opts: Any,
        memory: Memory,
        even: bool,
    ) -> Work:
        """Member a's inputs[b] goes to member b's outputs[a]. even: all have one length; else the members first gather
        the lengths."""
        into = [bytes_of(memory.change(output)) for output in outputs]
        out = [bytes_of(memory.read(input)) for input in inputs]
        count = len(self._members)
        sizes = torch.full((count, count), into[0].numel())
        after = None
        if not even:
            sizes[self._me] = torch.tensor([len(part) for part in out])
            transfers = self._gathering(sizes[self._me], list(sizes))
            after = Operation(call, lambda: transfers)
            self._line.issue(after)

        def plan() -> list[Transfer]:
            for member, part in enumerate(into):
                if sizes[member, self._me] != len(part):
                    raise ValueError(
                        f"{call}: rank {self._place.ranks[member]} sends {int(sizes[member, self._me])} bytes, and the "
                        f"output for them has {len(part)}: the split sizes of the two differ"
                    )
            return [
                self._from(a, b, into, out, int(sizes[a, b])) for a in self._members for b in self._members if a != b
            ]

        def finish() -> None:
            into[self._me].copy_(out[self._me])
            memory.restore()

        return self._begin(call, plan, results, opts, finish, after)

    def _from(self, a: int, b: int, into: Sequence[Tensor], out: Sequence[Tensor], nbytes: int) -> Transfer:
        """This member's part in what a sends to b."""
        if a == self._me:
            return Transfer(Verb.SEND, out[b])
        if b == self._me:
            return Transfer(Verb.RECEIVE, into[a])
        return Transfer(Verb.IGNORE, torch.empty(1, dtype=torch.uint8).expand(nbytes))

    def barrier(self, opts: Any) -> Work:
        return self._begin("barrier", [Transfer(Verb.SUM, torch.zeros(1, dtype=torch.uint8))], [], opts)

    # Messages

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> Work:
        message = Message(tag, bytes_of(Memory().read(one(tensors, "send"))))
        self._peer(dst, "send").send(message)
        return self._noted(Work(message, tensors, self._seconds))

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> Work:
        memory = Memory()
        message = Message(tag, bytes_of(memory.change(one(tensors, "recv"))), memory.restore)
        self._peer(src, "recv").receive(message)
        return self._noted(Work(message, tensors, self._seconds))

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        raise NotImplementedError("recv() from any rank: fptps receives from a given one: pass src")

    def _peer(self, member: int, call: str) -> Peer:
        if member == self._me:
            raise ValueError(f"{call}: rank {self._place.ranks[member]} is this process itself")
        if member not in self._peers:
            self._peers[member] = Peer(self._place, member)
        return self._peers[member]

    # Several calls as one

    def start_coalescing(self) -> None:
        self._together = []

    def end_coalescing(self) -> Work:
        works, self._together = self._together or [], None
        tensors = [tensor for work in works for tensor in work.result()]
        return Work(Together([work.ending for work in works]), tensors, self._seconds)

    def _begin(
        self,
        call: str,
        transfers: Sequence[Transfer] | Callable[[], list[Transfer]],
        tensors: Sequence[Tensor],
        opts: Any,
        finish: Callable[[], object] | None = None,
        after: Operation | None = None,
    ) -> Work:
        if callable(transfers):
            plan = transfers
        else:
            some = [transfer for transfer in transfers if transfer.array.numel()]
            plan = lambda: some  # noqa: E731
        operation = Operation(call, plan, finish, after)
        self._line.issue(operation)
        if opts.asyncOp:  # perhaps nobody waits for it
            operation.add_done_callback(lambda: None)
        timeout = opts.timeout.total_seconds()
        return self._noted(Work(operation, tensors, timeout if timeout > 0 else self._seconds))

    def _noted(self, work: Work) -> Work:
        if self._together is not None:
            self._together.append(work)
        return work

    def _parts(self, whole: Tensor, part: Tensor, call: str) -> list[Tensor]:
        """A tensor in as many parts as there are members."""
        if whole.numel() != part.numel() * len(self._members) or whole.dtype != part.dtype:
            raise ValueError(
                f"{call}: a tensor of {whole.numel()} elements of {whole.dtype}: {len(self._members)} times "
                f"{part.numel()} of {part.dtype} are expected"
            )
        return list(whole.reshape(-1).view(len(self._members), -1))

    def _check_count(self, tensors: Sequence[Tensor], call: str) -> None:
        if len(tensors) != len(self._members):
            raise ValueError(
                f"{call}: {len(tensors)} tensors: one for each of {len(self._members)} members is expected"
            )
