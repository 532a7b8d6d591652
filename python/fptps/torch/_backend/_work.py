"""What torch.distributed returns for an operation: a Work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Ending(Protocol):
    """Something that ends: an Operation, or the sending or receiving of a message."""

    @property
    def error(self) -> BaseException | None: ...
    @property
    def ended(self) -> bool: ...
    def wait(self, seconds: float) -> None: ...
    def add_done_callback(self, function: Callable[[], object]) -> None: ...


class Work(dist.Work):
    """An operation of a process group. PyTorch (2.15) calls wait() and get_future() only, also for its own users: the
    other methods of a Work that a program gets from it are the base class's."""

    def __init__(self, ending: Ending, tensors: Sequence[torch.Tensor], seconds: float) -> None:
        super().__init__()
        self.ending = ending
        self._tensors = list(tensors)
        self._seconds = seconds
        self._future: torch.futures.Future[Any] | None = None
        self._making = threading.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits until the operation has ended, at most the timeout (0: the group's). Raises the operation's error, and
        TimeoutError: the operation goes on then, and may be waited for again."""
        self.ending.wait(timeout.total_seconds() or self._seconds)
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future whose value is the list of the operation's tensors."""
        with self._making:
            if self._future is None:
                self._future = future_of(self.ending, self._tensors)
        return self._future

    def is_completed(self) -> bool:
        return self.ending.ended

    def is_success(self) -> bool:
        return self.ending.ended and self.ending.error is None

    def exception(self) -> BaseException | None:
        return self.ending.error if self.ending.ended else None

    def result(self) -> list[torch.Tensor]:
        return self._tensors


def future_of(ending: Ending, value: Any) -> torch.futures.Future[Any]:
    """A future with a tensor, or a list of tensors, at the end; or with the error."""
    # An error has to come out of a callback: what set_exception() sets, PyTorch's C++ takes for a value.
    tensors = value if isinstance(value, list) else [value]
    devices = list({tensor.device for tensor in tensors if not tensor.is_cpu})
    ended: torch.futures.Future[None] = torch.futures.Future(devices=devices)

    def outcome(_: object) -> Any:
        if ending.error is not None:
            raise ending.error
        return value

    future = ended.then(outcome)
    ending.add_done_callback(lambda: ended.set_result(None))
    return future


class Together:
    """Several endings as one, whose error is the first one's that has any."""

    def __init__(self, endings: Sequence[Ending]) -> None:
        self.endings = endings

    @property
    def error(self) -> BaseException | None:
        return next((one.error for one in self.endings if one.error is not None), None)

    @property
    def ended(self) -> bool:
        return all(one.ended for one in self.endings)

    def wait(self, seconds: float) -> None:
        for one in self.endings:
            one.wait(seconds)

    def add_done_callback(self, function: Callable[[], object]) -> None:
        left = [*self.endings]
        lock = threading.Lock()

        def one_ended() -> None:
            with lock:
                left.pop()
                last = not left
            if last:
                function()

        if not left:
            function()
        for one in self.endings:
            one.add_done_callback(one_ended)
