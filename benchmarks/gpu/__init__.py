"""The first run on a GPU, one command: `python -m benchmarks.gpu`. docs/gpu.md says what it does and shows.

Imports nothing heavy: stages are programs of their own, so that one that hangs or dies takes nothing with it.
"""
