"""Trainings with MXNet on shaped links: fptps.mxnet beside MXNet's own kvstore. See benchmarks/README.md."""
