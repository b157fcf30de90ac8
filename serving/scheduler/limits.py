"""The limits of one replica's batch and queues."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one replica.

    max_batched_tokens: rows of one step
    max_num_seqs: running sequences
    max_queue: waiting sequences
    max_tenant_queue: waiting sequences of one tenant; 0: no limit
    min_prefill_tokens: prompt tokens that a step computes even when running decodes leave no time, so that prompts
        progress under any load
    quantum: service, in prompt tokens, that a tenant may get in one turn for requests with the same first block
    """

    max_batched_tokens: int
    max_num_seqs: int
    max_queue: int
    max_tenant_queue: int = 0
    min_prefill_tokens: int = 32
    quantum: float = 256.0
