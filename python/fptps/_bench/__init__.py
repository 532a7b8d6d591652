"""`fptps bench`: how fast a cluster is, measured with the package's own public API. See docs/bench.md."""
