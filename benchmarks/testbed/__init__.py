"""The test bed: a cluster whose nodes have an address and a shaped link each. See docs/testbed.md."""

from .bed import TestBed, main, plan, why_not
from .network import TestBedError

__all__ = ["TestBed", "TestBedError", "main", "plan", "why_not"]
