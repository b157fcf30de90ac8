"""A step while it is planned: its chunks, and how much more fits into its rows and its time."""

from __future__ import annotations

from serving.core import Sequence
from serving.scheduler.cost_model import CostModel
from serving.scheduler.limits import Limits
from serving.steps import Chunk, StepPlan, StepShape


class OpenStep:
    """The state of one call of `Planner.plan`.

    rows: how many more rows fit
    seconds: how long the step may take
    scheduled: sequences in the step, which must not be preempted for others any more
    skipped: sequences that are not computed, because their deadline has passed
    preempted_for_kv: whether a sequence was preempted because KV blocks ran out
    """

    def __init__(
        self, plan: StepPlan, now: float, limits: Limits, costs: CostModel, block_size: int, skipped: set[Sequence]
    ) -> None:
        self.plan = plan
        self.now = now
        self.rows = limits.max_batched_tokens
        self.seconds = float("inf")
        self.scheduled: set[Sequence] = set()
        self.skipped = skipped
        self.preempted_for_kv = False
        self._limits = limits
        self._costs = costs
        self._block_size = block_size

    @property
    def shape(self) -> StepShape:
        return self.plan.shape

    def add(self, chunk: Chunk, rank: int) -> None:
        """Add a chunk to the step; `rank` is its adapter's."""
        self.plan.chunks.append(chunk)
        self.scheduled.add(chunk.sequence)
        self.rows -= chunk.count
        if chunk.count == 1:
            self.shape.add_decode(chunk.end, chunk.sequence.digest, rank)
        else:
            self.shape.add_prefill(chunk.start, chunk.count, chunk.sequence.digest, rank)

    def has_time_for(self, newcomer: Sequence, rank: int) -> bool:
        """Return whether another prompt is worth starting."""
        return self.shape.prefill_rows == 0 or self._rows_in_time(newcomer, rank) >= self._block_size

    def prefill_tokens(self, sequence: Sequence, rank: int) -> int:
        """Return how many tokens of its prompt this step computes; 0 when there is no time for more prompts. The first
        prompt of a step gets a few even then."""
        first = self.shape.prefill_rows == 0
        wanted, rows = min(sequence.pending, self.rows), self._rows_in_time(sequence, rank)
        if first:
            rows = max(rows, self._limits.min_prefill_tokens, self.shape.decode_rows)
        if rows >= wanted:
            return wanted
        # Chunks end where blocks end, so that the blocks they fill can be published and found at once.
        whole = (sequence.planned + rows) // self._block_size * self._block_size - sequence.planned
        return whole if whole > 0 else rows if first else 0

    def _rows_in_time(self, sequence: Sequence, rank: int) -> int:
        if self.seconds == float("inf"):
            return self.rows
        return self._costs.prefill_rows_within(self.shape, self.seconds, sequence.planned, sequence.digest, rank)


def can_decode(sequence: Sequence) -> bool:
    """Return whether a decode can be launched: with a token in flight, only if that token cannot be the last one, and
    if the step before chose it, not a group that knows all of its members' candidates."""
    return not sequence.in_flight or (
        sequence.group is None and sequence.output_tokens + 1 < sequence.request.max_tokens
    )
