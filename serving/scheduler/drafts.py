"""Adds drafts to a planned step: last, with rows and blocks that nothing else wants, charged to nobody."""

from __future__ import annotations

from serving.core import Sequence
from serving.kv.pool import BlockPool
from serving.scheduler.cost_model import CostModel
from serving.scheduler.open_step import OpenStep
from serving.scheduler.tables import BlockTables
from serving.speculation import Drafter, Offer, Source
from serving.speculation.choose import RowCosts, choose
from serving.steps import Chunk


class DraftPlanner:
    """Asks the drafter for every sequence that a step samples and takes what pays.

    max_rows: the most rows of drafts in one step
    drafted, accepted: tokens by source, since start
    """

    def __init__(self, drafter: Drafter, tables: BlockTables, pool: BlockPool, costs: CostModel, max_rows: int) -> None:
        self.drafter, self.max_rows = drafter, max_rows
        self.drafted, self.accepted = dict.fromkeys(Source, 0), dict.fromkeys(Source, 0)
        self._tables, self._pool, self._costs = tables, pool, costs
        self._sources: dict[Sequence, Source] = {}

    def extend(self, step: OpenStep) -> None:
        """Put drafts behind chunks of the step that sample. Preempts nobody, evicts nothing."""
        self._sources.clear()
        most = min(step.rows, self.max_rows)
        costs = self._row_costs(step)
        if most <= 0 or costs is None:
            return
        places, offers = list[int](), list[Offer]()
        for place, chunk in enumerate(step.plan.chunks):
            if chunk.samples and _may_guess(chunk.sequence):
                offer = self.drafter.offer(chunk.sequence, min(most, self._room(chunk.sequence)), step.now)
                if offer.tokens:
                    places.append(place)
                    offers.append(offer)
        for place, offer, count in zip(places, offers, choose(offers, costs, most), strict=True):
            if count:
                self._add(place, offer, count, step)

    def verified(self, chunk: Chunk, accepted: int, now: float) -> None:
        """Note how many tokens of a computed chunk's draft the model chose itself."""
        sequence, source, drafted = chunk.sequence, self._sources[chunk.sequence], len(chunk.draft)
        sequence.drafted += drafted
        self.drafted[source] += drafted
        self.accepted[source] += accepted
        self.drafter.verified(sequence, source, drafted, accepted, now)

    def _row_costs(self, step: OpenStep) -> RowCosts | None:
        """Return what rows cost and save in this step; None where even a certain token would not pay."""
        sampled = sum(chunk.samples for chunk in step.plan.chunks)
        if not sampled:
            return None
        shape, costs = step.shape, self._costs
        near_rows = max(0, costs.knee - shape.rows)
        near, late = costs.draft_row_seconds
        token = costs.predict(shape) / sampled
        return None if token < (near if near_rows else late) else RowCosts(token, near, late, near_rows)

    def _room(self, sequence: Sequence) -> int:
        """Return how many guesses fit: into the completion's limit, and into blocks that are free."""
        left = sequence.request.max_tokens - sequence.output_tokens - 1
        size = self._pool.block_size
        return min(left, (len(sequence.blocks) + self._pool.free) * size - sequence.planned)

    def _add(self, place: int, offer: Offer, count: int, step: OpenStep) -> None:
        chunk, plan = step.plan.chunks[place], step.plan
        missing = self._tables.missing(chunk.sequence, count)
        if missing > self._pool.free:  # another draft took the free blocks
            return
        if missing > 0:
            plan.fresh_blocks += self._tables.grow(chunk.sequence, count)
        plan.chunks[place] = chunk.drafting(offer.tokens[:count])
        step.rows -= count
        step.shape.add_drafts(count, self._costs.knee)
        assert offer.source is not None
        self._sources[chunk.sequence] = offer.source


def _may_guess(sequence: Sequence) -> bool:
    """Return whether drafts are tried. A beam's next token depends on all beams, so that none can be guessed."""
    return sequence.request.speculate and not sequence.request.embed and sequence.group is None
