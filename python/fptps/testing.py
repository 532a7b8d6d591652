"""For the tests of programs that use fptps: LocalCluster runs a function on a cluster of real processes.

    from fptps.testing import LocalCluster

    def test_sum():
        assert LocalCluster(workers=2, servers=1).run(work, 10.0) == [30.0, 30.0]

It is fptps.LocalCluster, under the name by which a test suite imports it.
"""

from .cluster import LocalCluster, Outcome, Process, Run

__all__ = ["LocalCluster", "Outcome", "Process", "Run"]
