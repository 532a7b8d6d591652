"""Temporary folders."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A temporary folder. Unlike tempfile's, a forked child that ends does not remove it."""
    folder = Path(tempfile.mkdtemp(prefix="fptps-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
