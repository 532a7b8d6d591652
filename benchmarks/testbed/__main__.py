"""`python -m benchmarks.testbed`."""

from .cli import main

main()
