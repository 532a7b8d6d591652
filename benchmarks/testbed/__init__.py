"""The test bed: a cluster whose nodes have an address and a shaped link each. See docs/testbed.md."""

from .bed import TestBed, plan, why_not
from .quantities import TestBedError
from .script import change, traffic

__all__ = ["TestBed", "TestBedError", "change", "plan", "traffic", "why_not"]
