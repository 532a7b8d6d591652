"""Merges the output of many processes: whole lines, each with the name of its process in front."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import IO, Final

from ._causes import LastWords

LONGEST: Final = 64 * 1024
"""A line is passed on in pieces of so many bytes: a process that never ends one must not fill the memory."""

ERASE: Final = b"\x1b[K"


class LineSplitter:
    """Cuts a stream of bytes into lines; handles progress bars, which restart a line by a carriage return."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Returns the finished lines, as a terminal would show them, and the visible part of the unfinished one."""
        *ended, rest = (self._rest + data).split(b"\n")
        if len(rest) > LONGEST:
            ended.append(rest)
            rest = b""
        # Of an overwritten line only the newest state is kept.
        self._rest = rest if b"\r" not in rest else _newest(rest, keep_return=True)
        return [_newest(line) for line in ended], _newest(rest)

    def end(self) -> list[bytes]:
        """Returns the rest of the stream: at most one line."""
        rest, self._rest = _newest(self._rest), b""
        return [rest] if rest else []


def _newest(line: bytes, keep_return: bool = False) -> bytes:
    """The last text, not empty, that carriage returns have put in the place of a line."""
    trailing = b"\r" if keep_return and line.endswith(b"\r") else b""
    return line.rstrip(b"\r").rpartition(b"\r")[2] + trailing


class Printer:
    """Writes lines of named processes to one stream. On a terminal the newest progress bar is its last line."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._raw = getattr(stream, "buffer", None)
        self._terminal = stream.isatty()
        self._progress = False  # the cursor stands on a progress bar

    def lines(self, prefix: str, lines: list[bytes]) -> None:
        """Writes whole lines."""
        front = prefix.encode()
        if self._terminal and self._progress and lines:
            self._write(b"\r" + ERASE)
            self._progress = False
        self._write(b"".join(front + line + b"\n" for line in lines))

    def progress(self, prefix: str, text: bytes) -> None:
        """Shows an unfinished line until the next one, on a terminal only."""
        if self._terminal and text:
            width = shutil.get_terminal_size().columns - 1
            shown = (prefix + text.decode(errors="replace"))[:width]
            self._write(b"\r" + shown.encode() + ERASE)
            self._progress = True

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._raw is None:  # a notebook, or a test's capture
            self._stream.write(data.decode(errors="replace"))
        else:
            self._stream.flush()
            self._raw.write(data)
        self._stream.flush()


class Source:
    """One stream of output of a named process, on its way to a printer. frame: what to make of lines, in the place of
    the name in front; None: the name in front. words: holds lines back, if it is stderr."""

    def __init__(
        self,
        name: str,
        frame: Callable[[list[bytes]], list[bytes]] | None,
        printer: Printer,
        words: LastWords | None = None,
    ) -> None:
        self.words = words
        self._prefix = "" if frame else f"[{name}] "
        self._frame = frame
        self._splitter = LineSplitter()
        self._printer = printer

    def feed(self, data: bytes) -> None:
        """Passes on what the process has written."""
        lines, unfinished = self._splitter.feed(data)
        self._lines(lines)
        if not self._frame:
            self._printer.progress(self._prefix, unfinished)

    def end(self) -> None:
        """Passes on the rest, as the stream has ended."""
        self._lines(self._splitter.end())

    def expire(self, now: float) -> None:
        """Passes on what was held back for too long. now: monotonic seconds."""
        if self.words:
            self._print(self.words.expire(now))

    def release(self) -> None:
        """Passes on what is held back."""
        if self.words:
            self._print(self.words.release())

    def _lines(self, lines: list[bytes]) -> None:
        self._print(self.words.feed(lines, time.monotonic()) if self.words else lines)

    def _print(self, lines: list[bytes]) -> None:
        self._printer.lines(self._prefix, self._frame(lines) if self._frame else lines)
