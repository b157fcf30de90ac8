"""Attacks on the order of the catalogue, on the platform's own task and tables: `python -m benchmarks.ranking`."""
