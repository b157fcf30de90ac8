"""Sequences and residency without an engine."""

from __future__ import annotations

import itertools
import random

from serving.core import AdapterRef, LatencyClass, Request, SamplingParams, Sequence
from serving.kv.pool import BlockPool
from serving.scheduler.limits import Limits
from serving.scheduler.planner import Planner
from serving.scheduler.slo import Targets
from serving.steps import AdapterCost

_ids = itertools.count()


class PlainText:
    stopped = False

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


class FakeResidency:
    """`ready` may be changed between steps; pins are counted."""

    def __init__(self, *ready: str) -> None:
        self.ready = set(ready)
        self.pins: dict[str | None, int] = {}

    def is_ready(self, digest: str | None) -> bool:
        return digest is None or digest in self.ready

    def cost(self, digest: str | None) -> AdapterCost:
        return AdapterCost(8 if digest else 0, 1 << 20, 0.0 if self.is_ready(digest) else 0.1)

    def pin(self, digest: str | None) -> None:
        assert self.is_ready(digest)
        self.pins[digest] = self.pins.get(digest, 0) + 1

    def unpin(self, digest: str | None) -> None:
        self.pins[digest] -= 1
        assert self.pins[digest] >= 0


def sequence(
    prompt: int | list[int],
    *,
    digest: str | None = None,
    tenant: str = "t",
    scope: str = "s",
    tokens: int = 8,
    deadline: float | None = None,
    latency_class: LatencyClass = LatencyClass.STANDARD,
    weight: float = 1.0,
    arrival: float = 0.0,
) -> Sequence:
    ids = tuple(range(prompt)) if isinstance(prompt, int) else tuple(prompt)
    params = SamplingParams(temperature=0)
    request = Request(
        f"r{next(_ids)}",
        tenant,
        scope,
        AdapterRef(digest),
        ids,
        params,
        tokens,
        deadline,
        latency_class=latency_class,
        weight=weight,
    )
    return Sequence(request, arrival, list(ids), PlainText(), random.Random(0))


def planner(
    residency: FakeResidency | None = None,
    *,
    blocks: int = 65,
    size: int = 4,
    budget: int = 64,
    seqs: int = 16,
    caching: bool = True,
    targets: Targets | None = None,
) -> Planner:
    pool = BlockPool(blocks, size, caching=caching)
    limits = Limits(budget, seqs, 100)
    return Planner(limits, pool, residency or FakeResidency(), "fingerprint", targets=targets)


def run_step(plans: Planner, now: float = 0.0) -> list[Sequence]:
    """Plans one step, pretends to compute it (token 7 for everyone), finishes who is done. Returns who was in it."""
    plan = plans.plan(now)
    for late in plan.expired:
        plans.finish(late)
    for chunk in plan.chunks:
        seq, samples = chunk.sequence, chunk.samples
        assert chunk.start == seq.computed and len(seq.blocks) * plans.pool.block_size >= chunk.start + chunk.count
        assert plans.commit(chunk, now)
        if samples:
            seq.tokens.append(7)
            if seq.output_tokens >= seq.request.max_tokens:
                plans.finish(seq)
    assert sum(c.count for c in plan.chunks) <= plans.limits.max_batched_tokens
    plans.check_integrity()
    return [chunk.sequence for chunk in plan.chunks]
