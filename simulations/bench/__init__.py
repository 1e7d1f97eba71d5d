"""Benchmarks, one command each: ``python -m simulations.bench.<name>``."""
