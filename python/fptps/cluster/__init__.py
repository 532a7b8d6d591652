"""Whole clusters on one machine: LocalCluster runs a function on every worker, each in a process of its own."""

from ._local import LocalCluster
from ._process import Process
from ._run import Outcome, Run

__all__ = ["LocalCluster", "Outcome", "Process", "Run"]
