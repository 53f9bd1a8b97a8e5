"""Measures the figures of benchmarks/README.md: `make bench`."""
