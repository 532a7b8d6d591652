"""The programs that benchmarks.testbed runs on its links. They import Python's own modules alone, to start fast."""
