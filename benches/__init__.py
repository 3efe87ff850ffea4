"""Benchmarks: every figure in the documentation comes from here, as a ratio to a floor measured in the same run."""
