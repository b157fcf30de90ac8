"""How much one step computes, as a step-time model sees it: the same numbers for simulated and for real steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from serving.simulation.residency import PAGE_RANK
from serving.steps import StepPlan


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step.

    rows: tokens; decode_rows: those of running completions; samples: rows that go through the output head
    context: KV entries that decodes read; pairs: query-key pairs of prefill attention
    adapters: different ones; pages: of them; rank_rows: adapter rank summed over rows
    loading: whether an adapter was being loaded beside the step
    """

    rows: int
    decode_rows: int
    samples: int
    context: int
    pairs: float
    adapters: int
    pages: int
    rank_rows: int
    loading: bool = False


def work_of(plan: StepPlan, rank: Callable[[str], int], *, loading: bool = False) -> StepWork:
    """Return the work of a plan that was not committed yet. rank: an adapter's"""
    shape = plan.shape
    return StepWork(
        rows=shape.rows,
        decode_rows=shape.decode_rows,
        samples=sum(chunk.samples for chunk in plan.chunks),
        context=shape.context_tokens,
        pairs=shape.prefill_pairs,
        adapters=len(shape.adapters),
        pages=sum(max(1, -(-rank(digest) // PAGE_RANK)) for digest in shape.adapters),
        rank_rows=shape.rank_rows,
        loading=loading,
    )
