"""Adds drafts to a planned step: last, with rows and blocks that nothing else wants, charged to nobody."""

from __future__ import annotations

from collections.abc import Iterable

from serving.core import Sequence
from serving.kv.pool import BlockPool
from serving.scheduler.cost_model import CostModel
from serving.scheduler.open_step import OpenStep
from serving.scheduler.tables import BlockTables
from serving.speculation import Drafter, Offer, Source
from serving.speculation.choose import RowCosts, choose
from serving.steps import Chunk

# Output tokens for which nobody waits to draft behind a sequence: after nothing was offered, and after a draft that did
# not pay or was wrong.
_NOTHING_OFFERED, _NO_USE = 8, 2


class DraftPlanner:
    """Asks the drafter for every sequence that a step samples and takes what pays.

    max_rows: the most rows of drafts in one step
    in_turn: whether the runner samples their rows one after another (`serving.steps.StepRunner.drafts_in_turn`)
    drafted, accepted: tokens by source, since start
    """

    def __init__(
        self,
        drafter: Drafter,
        tables: BlockTables,
        pool: BlockPool,
        costs: CostModel,
        max_rows: int,
        *,
        in_turn: bool = True,
    ) -> None:
        self.drafter, self.max_rows = drafter, max_rows
        self.drafted, self.accepted = dict.fromkeys(Source, 0), dict.fromkeys(Source, 0)
        self._tables, self._pool, self._costs, self._in_turn = tables, pool, costs, in_turn
        self._sources: dict[Sequence, Source] = {}

    def extend(self, step: OpenStep) -> None:
        """Put drafts behind chunks of the step that sample. Preempts nobody, evicts nothing."""
        if not self.max_rows:
            return
        self._sources.clear()
        most = min(step.rows, self.max_rows)
        costs = self._row_costs(step)
        if most <= 0 or costs is None:
            for chunk in step.plan.chunks:
                _be_quiet(chunk.sequence, _NO_USE)
            return
        places, offers = list[int](), list[Offer]()
        for place, chunk in enumerate(step.plan.chunks):
            # A draft continues what is known: nothing is behind a token in flight.
            if chunk.end == len(chunk.sequence.tokens) and self._may_draft(chunk.sequence):
                offer = self.drafter.offer(chunk.sequence, min(most, self._room(chunk.sequence)), step.now)
                if offer.tokens:
                    places.append(place)
                    offers.append(offer)
                else:
                    _be_quiet(chunk.sequence, _NOTHING_OFFERED)
        for place, offer, count in zip(places, offers, choose(offers, costs, most), strict=True):
            if count:
                self._add(place, offer, count, step)
            else:
                _be_quiet(step.plan.chunks[place].sequence, _NO_USE)

    def expects(self, running: Iterable[Sequence]) -> bool:
        """Return whether a draft is likely for any of these, so that their tokens in flight are worth waiting for."""
        return self.max_rows > 0 and any(
            sequence.in_flight and sequence.output_tokens + 1 >= sequence.quiet_until and self._may_draft(sequence)
            for sequence in running
        )

    def verified(self, chunk: Chunk, accepted: int, now: float) -> None:
        """Note how many tokens of a computed chunk's draft the model chose itself."""
        sequence, source, drafted = chunk.sequence, self._sources[chunk.sequence], len(chunk.draft)
        sequence.drafted += drafted
        if not accepted:
            _be_quiet(sequence, _NO_USE)
        self.drafted[source] += drafted
        self.accepted[source] += accepted
        self.drafter.verified(sequence, source, drafted, accepted, now)

    def _may_draft(self, sequence: Sequence) -> bool:
        """Return whether drafts are tried. A beam's next token depends on all beams, so that none can be guessed."""
        request = sequence.request
        if not request.speculate or request.embed or sequence.group is not None:
            return False
        return self._in_turn or (request.sampling.constraint is None and not request.sampling.penalises)

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


def _be_quiet(sequence: Sequence, tokens: int) -> None:
    sequence.quiet_until = sequence.output_tokens + tokens
