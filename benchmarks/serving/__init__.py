"""Tokens per second of the engine beside vLLM and transformers + PEFT, on one seeded workload.

`python -m benchmarks.serving` starts every engine once, lets them take turns cell by cell, and prints medians.
"""
