"""The order of preemption: lowest class first, then the largest slack, then the cheapest to recompute."""

from __future__ import annotations

from serving.core import Sequence
from serving.scheduler.slo import Targets

# A sequence that was preempted for better classes this often is not preempted for them again, so that it finishes.
MAX_PREEMPTIONS = 3

# A sequence preempts others only after it has waited for this share of its target TTFT.
LATE = 0.25


def victim_order(sequence: Sequence, targets: Targets, now: float) -> tuple[int, int, int, float]:
    """Return a sort key; the sequence with the largest is preempted first.

    Slack counts in whole inter-token times: finer differences are noise, so the cost of recomputation decides there.
    """
    slack = targets.slack(sequence, now) / targets.of(sequence).itl
    return targets.rank(sequence, now), round(slack), -sequence.planned, sequence.arrival


def victims_for(
    newcomer: Sequence, running: list[Sequence], targets: Targets, now: float, seats: int, blocks: int
) -> list[Sequence]:
    """Choose running sequences to preempt so that `seats` seats and `blocks` KV blocks become free for `newcomer`.

    The list is empty if `newcomer` is not late yet or if lower classes do not hold enough.
    """
    wants = newcomer.request.latency_class.value
    if now - newcomer.arrival < LATE * targets.of(newcomer).ttft or (seats <= 0 and blocks <= 0):
        return []
    lower = [s for s in running if targets.rank(s, now) > wants and s.preemptions < MAX_PREEMPTIONS]
    lower.sort(key=lambda s: victim_order(s, targets, now), reverse=True)
    chosen: list[Sequence] = []
    for sequence in lower:
        if seats <= 0 and blocks <= 0:
            break
        chosen.append(sequence)
        seats -= sequence.width
        blocks -= sequence.held_blocks
    return chosen if seats <= 0 and blocks <= 0 else []
