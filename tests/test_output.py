"""fptps.cluster._output: lines of many processes, with progress bars among them."""

import io

import pytest

from fptps.cluster._output import LONGEST, LineSplitter, Printer


def split(data, size):
    """The lines of data that arrives in pieces of some size."""
    splitter = LineSplitter()
    lines = []
    for start in range(0, len(data), size):
        lines += splitter.feed(data[start : start + size])[0]
    return lines + splitter.end()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"dos\r\nlines\r\n", [b"dos", b"lines"]),
        (b"\r 1%\r 50%\r100%\ndone\n", [b"100%", b"done"]),
        (b"\r 1%\r 50%", [b" 50%"]),
        (b"50%\r", [b"50%"]),
        ("\r█ 1\r██ 2\n".encode(), ["██ 2".encode()]),
        (b"\xff\xfe\n", [b"\xff\xfe"]),
    ],
)
def test_lines(data, lines, size):
    assert split(data, size) == lines


def test_a_line_without_end_is_passed_on_in_pieces():
    splitter = LineSplitter()
    lines = []
    for _ in range(100):
        lines += splitter.feed(b"x" * 4096)[0]
    assert max(map(len, lines)) <= LONGEST + 4096
    assert b"".join(lines + splitter.end()) == b"x" * 409600


def test_unfinished_line():
    assert LineSplitter().feed(b"a\nb\r 1%\r 2%") == ([b"a"], b" 2%")


class Terminal(io.StringIO):
    """A stream whose isatty() is True."""

    def isatty(self):
        return True


def test_file_gets_whole_lines_only():
    stream = io.StringIO()
    printer = Printer(stream)
    printer.progress("[a] ", b"1%")
    printer.lines("[a] ", [b"x", b"y"])
    printer.lines("[b] ", [])
    assert stream.getvalue() == "[a] x\n[a] y\n"


def test_terminal_shows_the_newest_progress_bar_as_its_last_line():
    stream = Terminal()
    printer = Printer(stream)
    printer.progress("[a] ", b"1%")
    printer.lines("[b] ", [b"x"])
    printer.progress("[a] ", b"2%")
    assert stream.getvalue() == "\r[a] 1%\x1b[K\r\x1b[K[b] x\n\r[a] 2%\x1b[K"


def test_bytes_are_passed_on_as_they_are():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    Printer(stream).lines("[a] ", [b"\xff\xc3\xa9"])
    assert raw.getvalue() == b"[a] \xff\xc3\xa9\n"
