"""Messages from one member of a process group to another: send and recv.

The two members form a cluster of their own when the first message is sent or waited for, so that the others take no
part. A message is a header, then its bytes: two operations that the sender pushes and the receiver skips. Each
direction has a Line of its own and a thread on both sides, which moves one message after the other.

The receiver begins only when it waits for a message. One that it does not wait for yet, by its tag, is kept until it
does.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

import torch

from ...errors import MismatchError, TimeoutError
from .._meeting import Place
from ._line import Line
from ._operation import Operation, Transfer, Verb
from ._rendezvous import Membership, join

HEADER: Final = 2
"""Elements of a header: the tag, and the number of bytes."""
STOP: Final = None


class Message:
    """A message that is being sent, or waited for."""

    def __init__(self, tag: int, content: torch.Tensor, finish: Callable[[], object] | None = None) -> None:
        self.tag = tag
        self.content = content
        """The message's bytes, or where they go."""
        self.error: BaseException | None = None
        self._finish = finish
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    @property
    def ended(self) -> bool:
        return self._end.is_set()

    def wait(self, seconds: float) -> None:
        if not self._end.wait(min(seconds, threading.TIMEOUT_MAX)):
            raise TimeoutError(f"waited {seconds:g} s for the other end of a message with tag {self.tag}")
        if self.error is not None:
            raise self.error

    def add_done_callback(self, function: Callable[[], object]) -> None:
        with self._lock:
            ended = self.ended
            if not ended:
                self._callbacks.append(function)
        if ended:
            function()

    def settle(self, error: BaseException | None) -> None:
        """Records the end."""
        if error is None and self._finish is not None:
            self._finish()
        with self._lock:
            self.error = error
            self._end.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Peer:
    """Another member of a group, as the one that messages go to and come from."""

    def __init__(self, place: Place, member: int) -> None:
        pair = sorted([place.rank, member])
        self._place = place.within(f"messages {pair[0]} and {pair[1]}", pair)
        self._joining = threading.Lock()
        self._membership: Membership | None = None
        self._failure: BaseException | None = None
        self._starting = threading.Lock()
        self._queues: dict[str, queue.SimpleQueue[Message | None]] = {}
        self._kept: list[Message] = []  # that came before anyone waited for them

    def send(self, message: Message) -> None:
        """Sends a message. Never waits."""
        self._queue("send", self._send_one).put(message)

    def receive(self, message: Message) -> None:
        """Waits for a message on a thread. Never waits itself."""
        self._queue("receive", self._receive_one).put(message)

    def leave(self) -> None:
        """Leaves the cluster of the two, after the messages under way."""
        for one in self._queues.values():
            one.put(STOP)
        if self._membership is not None:
            self._membership.leave()

    def abort(self) -> None:
        """Leaves it at once."""
        for one in self._queues.values():
            one.put(STOP)
        if self._membership is not None:
            self._membership.abort()

    def _queue(self, name: str, serve: Callable[[Line, Message], None]) -> queue.SimpleQueue[Message | None]:
        with self._starting:
            if name not in self._queues:
                messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
                self._queues[name] = messages
                threading.Thread(
                    target=self._run, args=(name, messages, serve), name=f"fptps {name}", daemon=True
                ).start()
            return self._queues[name]

    def _run(
        self, name: str, messages: queue.SimpleQueue[Message | None], serve: Callable[[Line, Message], None]
    ) -> None:
        line = None
        while (message := messages.get()) is not STOP:
            try:
                line = line or self._line(name)
                if self._failure is not None:
                    raise self._failure
                serve(line, message)
            except BaseException as error:
                self._failure = self._failure or error
                message.settle(error)

    def _line(self, name: str) -> Line:
        """The way of the messages in one direction; joins the cluster of the two if that was not done."""
        with self._joining:
            if self._membership is None:
                self._membership = join(self._place, default=False)
        kv = self._membership.kv
        sender = kv.rank if name == "send" else 1 - kv.rank
        return Line(kv.namespace(f"from {sender}"), self._place.seconds)

    def _move(self, line: Line, verb: Verb, array: torch.Tensor) -> None:
        operation = Operation("message", lambda: [Transfer(verb, array)])
        line.issue(operation)
        operation.wait(self._place.seconds)

    def _send_one(self, line: Line, message: Message) -> None:
        self._move(line, Verb.SEND, torch.tensor([message.tag, message.content.numel()]))
        if message.content.numel():
            self._move(line, Verb.SEND, message.content)
        message.settle(None)

    def _receive_one(self, line: Line, message: Message) -> None:
        for kept in self._kept:
            if kept.tag == message.tag:
                self._kept.remove(kept)
                error = _mismatch(message, kept.content.numel())
                if error is None:
                    message.content.copy_(kept.content)
                message.settle(error)
                return
        while True:
            header = torch.empty(HEADER, dtype=torch.int64)
            self._move(line, Verb.RECEIVE, header)
            tag, count = header.tolist()
            expected = tag == message.tag and count == message.content.numel()
            content = message.content if expected else torch.empty(count, dtype=torch.uint8)
            if count:
                self._move(line, Verb.RECEIVE, content)
            if tag == message.tag:
                message.settle(_mismatch(message, count))
                return
            self._kept.append(Message(tag, content))


def _mismatch(message: Message, count: int) -> MismatchError | None:
    if count == message.content.numel():
        return None
    return MismatchError(
        f"a message with tag {message.tag} has {count} bytes, and the tensor to receive it {message.content.numel()}: "
        "both have to be of one size"
    )
