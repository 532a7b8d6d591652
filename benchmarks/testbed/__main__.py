"""`python -m benchmarks.testbed`."""

from .bed import main

main()
