"""The sizes of runs, in which KV blocks cross from replica to replica."""

from __future__ import annotations

# A run is copied between two steps of the engine; smaller ones cost a wait for a step each.
RUN_BYTES = 4 << 20
_LEAST_TOKENS = 64


def run_blocks(block_bytes: int, block_tokens: int) -> int:
    """Return the blocks of one run: of at least 64 tokens, and of 4 MiB where blocks are small."""
    return max(-(-_LEAST_TOKENS // block_tokens), RUN_BYTES // block_bytes)
