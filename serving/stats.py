"""The engine's counters, written by the engine thread and readable from any thread: each is consistent by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving.core import LatencyClass
from serving.kv.level import LevelCounts
from serving.scheduler.counts import ClassCounts
from serving.scheduler.planner import Planner
from serving.scheduler.restore import RestoreCounts
from serving.speculation import Source
from serving.steps import StepPlan


@dataclass(slots=True)
class EngineStats:
    """Counters since start, and gauges of the last step.

    waiting_by_class, by_class: gauge and counters of each latency class
    predicted_step_seconds, step_seconds: of the last step
    step_prediction_error: running mean of |predicted / measured - 1|
    fairness_gap: how far the virtual counters of tenants with work waiting are apart, in prompt tokens
    drafted, accepted: tokens of drafts that were verified, and those that the model chose itself, by source
    answer_books, answer_book_bytes: books of past answers, one for each scope and adapter, and their memory
    kv_levels: KV blocks below the pool, by level; restores: of waiting sequences
    prefix_lookup_tokens, prefix_hit_tokens: prompt tokens of requests that started, and those found in the cache
    """

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    failed: int = 0
    preemptions: int = 0
    aged: int = 0
    batch_size: int = 0
    adapters_in_batch: int = 0
    max_adapters_in_one_batch: int = 0
    batches_with_several_adapters: int = 0
    running: int = 0
    waiting: int = 0
    waiting_by_class: dict[LatencyClass, int] = field(default_factory=dict)
    by_class: dict[LatencyClass, ClassCounts] = field(default_factory=dict)
    fairness_gap: float = 0.0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    prefix_hits: int = 0
    prefix_lookup_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefix_evictions: int = 0
    step_seconds: float = 0.0
    predicted_step_seconds: float = 0.0
    step_prediction_error: float = 0.0
    busy_seconds: float = 0.0
    drafted: dict[Source, int] = field(default_factory=dict)
    accepted: dict[Source, int] = field(default_factory=dict)
    answer_books: int = 0
    answer_book_bytes: int = 0
    kv_levels: dict[str, LevelCounts] = field(default_factory=dict)
    restores: RestoreCounts = field(default_factory=RestoreCounts)

    def record_step(self, plan: StepPlan, sampled: int, seconds: float) -> None:
        adapters = len(plan.shape.adapters)
        self.steps += 1
        self.batch_size = len(plan.chunks)
        self.adapters_in_batch = adapters
        self.max_adapters_in_one_batch = max(self.max_adapters_in_one_batch, adapters)
        self.batches_with_several_adapters += adapters > 1
        self.prompt_tokens += plan.tokens - sum(c.start >= c.sequence.prompt_tokens for c in plan.chunks)
        self.generated_tokens += sampled
        self.step_seconds, self.predicted_step_seconds = seconds, plan.predicted_seconds
        self.busy_seconds += seconds

    def observe(self, planner: Planner) -> None:
        """Read the gauges after a turn."""
        self.running, self.waiting = len(planner.running), len(planner.waiting)
        self.waiting_by_class, self.by_class = planner.waiting.lengths(), planner.counts
        self.fairness_gap, self.aged = planner.accounts.counters.gap(), planner.waiting.aged
        self.kv_blocks_used, self.kv_blocks_total = planner.pool.used, planner.pool.limit
        self.prefix_hits = planner.pool.hits
        self.prefix_evictions = planner.pool.evictions
        self.prefix_lookup_tokens = sum(counts.lookup_tokens for counts in planner.counts.values())
        self.prefix_hit_tokens = sum(counts.cached_tokens for counts in planner.counts.values())
        self.step_prediction_error = planner.costs.relative_error
        self.preemptions = planner.preemptions
        self.drafted, self.accepted = planner.drafts.drafted, planner.drafts.accepted
        books = (planner.drafts.drafter.books, planner.drafts.drafter.seeds)
        self.answer_books, self.answer_book_bytes = sum(map(len, books)), sum(one.bytes for one in books)
        self.kv_levels, self.restores = planner.restores.tiers.counts(), planner.restores.counts
        if not planner.running:
            self.batch_size = self.adapters_in_batch = 0

    def record_finish(self, failed: bool) -> None:
        self.finished += 1
        self.failed += failed
