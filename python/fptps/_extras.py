"""Packages that only a part of fptps needs: its optional dependencies, in pyproject.toml."""

from __future__ import annotations

import importlib
from typing import Any


def load(module: str, extra: str, user: str) -> Any:
    """Imports a module of an extra; the text of its ImportError says how to install the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{user} needs the package {module}: pip install 'fptps[{extra}]' ({error})") from error
