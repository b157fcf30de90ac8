"""How much one replica takes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """max_batched_tokens bounds one step's rows; max_num_seqs the running sequences; max_queue and max_tenant_queue the
    waiting ones, in all and of one tenant (0: no limit of its own).

    min_prefill_tokens: prompt tokens a step computes even when running decodes have no time left, so that prompts
        progress under any load
    quantum: service (in prompt tokens) a tenant may get in one turn for requests that begin alike
    """

    max_batched_tokens: int
    max_num_seqs: int
    max_queue: int
    max_tenant_queue: int = 0
    min_prefill_tokens: int = 32
    quantum: float = 256.0
