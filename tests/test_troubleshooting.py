"""docs/troubleshooting.md has every error and every warning of the sources, and none that is gone.

In both, … takes the place of each value. The page may leave out the rest of a message: its own text, between one … and
the next, has to be in the source's message in that order.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
GO = [path for folder in ("gocore", "pybind") for path in (ROOT / folder).rglob("*.go") if "_test" not in path.name]
PYTHON = [path for path in (ROOT / "python/fptps").rglob("*.py") if "_bench" not in path.parts]

# A wrong argument raises Python's own error, whose text is enough; an internal error is a bug.
NOT_LISTED = {"Value", "Type", "Key", "Internal"}
GO_TEXT = r'"(?:[^"\\\n]|\\.)*"'
GO_ERROR = re.compile(rf"fault\.New\(fault\.(\w+),\s*({GO_TEXT})")
GO_LOG = re.compile(rf"\.(?:Warn|Error|Log\([^\"]*)\(?({GO_TEXT})")
PYTHON_ERRORS = re.compile(r"(?:Config|Connect|Mismatch|NodeLost|Timeout|Closed|Busy|Remote|Checkpoint|Rank)Error$")
PYTHON_LOG = {"warning", "error", "exception"}


def go_message(literal):
    """A Go string, … for each verb."""
    return re.sub(r"%[-+#.\d]*[a-zA-Z]", "…", ast.literal_eval(literal))


def python_message(node):
    """A Python string or f-string, … for each value; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[-+#.\d]*[a-zA-Z]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def texts():
    """Every string of the sources."""
    for path in GO:
        yield from (go_message(literal) for literal in re.findall(GO_TEXT, path.read_text()))
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            yield python_message(node) or ""


def messages():
    """What a user can meet: errors that are not about an argument, and lines of the log."""
    for path in GO:
        text = path.read_text()
        yield from (go_message(literal) for code, literal in GO_ERROR.findall(text) if code not in NOT_LISTED)
        yield from (go_message(literal) for literal in GO_LOG.findall(text))
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func)
            logs = name.split(".")[0] == "_log" and name.split(".")[-1] in PYTHON_LOG
            text = python_message(node.args[0]) or ""
            if name == "_logs.tell":
                text = python_message(node.args[1]) or ""
            if PYTHON_ERRORS.search(name) or logs or name == "_logs.tell" or re.match("fptps( …)?: ", text):
                yield text


def entries():
    """The messages of the page: the code in the first column of its tables."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    return [
        code for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for code in re.findall(r"`+ ?(.+?) ?`+", row)
    ]


def matcher(entry):
    """A function that reports whether an entry of the page is about a message."""
    if not re.search("[a-z]{3}", entry):
        return lambda message: entry == message
    pattern = re.compile(".*".join(re.escape(piece) for piece in entry.split("…") if piece.strip()), re.DOTALL)
    return lambda message: pattern.search(message) is not None


def test_every_message_has_an_entry():
    listed = [matcher(entry) for entry in entries()]
    logged = [message for message in messages() if len(re.findall(r"[a-z]{2,}", message)) > 2]
    assert len(logged) > 50
    assert [message for message in logged if not any(matches(message) for matches in listed)] == []


def test_every_entry_is_a_message():
    known = set(texts())
    assert [entry for entry in entries() if not any(map(matcher(entry), known))] == []
