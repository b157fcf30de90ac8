"""What the engine counts. Written by the engine thread, read by anyone: plain numbers, each consistent by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.core import StepPlan
from serving.scheduler.planner import Planner


@dataclass(slots=True)
class EngineStats:
    """Counters since start, and gauges of the last step."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    failed: int = 0
    preemptions: int = 0
    batch_size: int = 0
    adapters_in_batch: int = 0
    max_adapters_in_one_batch: int = 0
    batches_with_several_adapters: int = 0
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    prefix_hits: int = 0
    step_seconds: float = 0.0
    busy_seconds: float = 0.0
    _finish_times: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def record_step(self, plan: StepPlan, sampled: int, seconds: float) -> None:
        digests = {c.sequence.digest for c in plan.chunks} - {None}
        self.steps += 1
        self.batch_size = len(plan.chunks)
        self.adapters_in_batch = len(digests)
        self.max_adapters_in_one_batch = max(self.max_adapters_in_one_batch, len(digests))
        self.batches_with_several_adapters += len(digests) > 1
        self.prompt_tokens += plan.tokens - sum(c.start >= c.sequence.prompt_tokens for c in plan.chunks)
        self.generated_tokens += sampled
        self.step_seconds = seconds
        self.busy_seconds += seconds

    def observe(self, planner: Planner) -> None:
        """Takes the gauges after a turn."""
        self.running, self.waiting = len(planner.running), len(planner.waiting)
        self.kv_blocks_used, self.prefix_hits = planner.pool.used, planner.pool.hits
        self.preemptions = planner.preemptions
        if not planner.running:
            self.batch_size = self.adapters_in_batch = 0

    def record_finish(self, now: float) -> None:
        self.finished += 1
        self._finish_times.append(now)

    def retry_after(self, queued: int, now: float) -> float:
        """Seconds until a queue of this length has probably drained, between 1 and 60, at the recent pace."""
        times: Sequence[float] = list(self._finish_times)
        if len(times) < 2:
            return 5.0
        pace = len(times) / max(now - times[0], 1e-3)
        return min(60.0, max(1.0, queued / pace / 2))
