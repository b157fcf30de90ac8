"""The beams of one request in the engine: sequences that share blocks and grow by a token once all have been computed.

The leader is the sequence that the request began with; the scheduler sees it alone (`serving.core.SequenceGroup`). It
computes the prompt, and becomes one of several with the first token. A beam that two others continue lives on in the
first of them; the other shares its blocks, and gets a copy of the last one when it writes there
(`serving.scheduler.tables`). Nothing is drawn, so that a group which gave its blocks back begins again with its prompt
and comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from serving import core
from serving.core import Delta, OutputText, Request, Status
from serving.errors import BeamsTooWide
from serving.sampling.beams import BeamSearch, Choice, Hypothesis
from serving.scheduler.limits import Limits
from serving.scheduler.tables import BlockTables
from serving.steps import SampledToken


def check_fits(request: Request, limits: Limits, blocks: int, block_size: int) -> None:
    """Raise BeamsTooWide unless the request's beams fit a step, and the longest of them `blocks` KV blocks."""
    beam = request.sampling.beam
    if beam is None:
        return
    most = min(limits.max_num_seqs, limits.max_batched_tokens)
    if beam.width > most:
        raise BeamsTooWide(f"{beam.width} beams were asked for, this replica computes at most {most} at once.")
    prompt = len(request.prompt_token_ids)
    shared = prompt // block_size
    own = -(-(prompt + request.max_tokens) // block_size) - shared
    # One more while the last sharer of a block is about to write to it.
    if shared + beam.width * own + 1 > blocks:
        tokens = blocks * block_size
        raise BeamsTooWide(
            f"{beam.width} beams of up to {request.max_tokens} tokens behind a prompt of {prompt} do not fit the "
            f"{tokens} tokens of memory that this replica has: ask for fewer beams or tokens."
        )


class BeamGroup:
    """`serving.core.SequenceGroup` of a beam search.

    make_output: builds the detokenizer of one completion
    """

    def __init__(
        self,
        leader: core.Sequence,
        tables: BlockTables,
        end_tokens: frozenset[int],
        make_output: Callable[[Request], OutputText],
    ) -> None:
        beam = leader.request.sampling.beam
        assert beam is not None
        self.leader, self.width, self.computed_tokens = leader, beam.width, 0
        self.members = [leader]
        self._beam, self._tables, self._make_output = beam, tables, make_output
        self._end_tokens = frozenset[int]() if leader.request.sampling.ignore_eos else end_tokens
        self._search = self._begin()
        self.candidates = self._search.candidates
        self._rows: dict[core.Sequence, SampledToken] = {}

    def add(self, member: core.Sequence, sampled: SampledToken) -> Delta | None:
        """Take a member's candidates; once all have theirs, go on with the best of them.

        Returns the delta of a step that is complete, the last one with the answers.
        """
        if self.leader.status is not Status.RUNNING:  # computed before the group gave its blocks back
            return None
        self._rows[member] = sampled
        if len(self._rows) < len(self.members):
            return None
        rows = [self._rows[one] for one in self.members]
        self._rows.clear()
        chosen = self._search.advance(rows)
        # What is computed again after a preemption is not charged again.
        self.computed_tokens = max(self.computed_tokens, self._search.computed_tokens)
        if not chosen:
            return self._answer()
        self._go_on(chosen)
        return Delta("", (), (), None, self.leader.usage())

    def restart(self) -> None:
        """Restart as `SequenceGroup.restart`."""
        leader = self.leader
        for member in self.members:
            if member is not leader:
                member.status = Status.FINISHED
        del leader.tokens[leader.prompt_tokens :]
        leader.block_keys, leader.sampler = [], None
        self.members = [leader]
        self._rows.clear()
        self._search = self._begin()

    def _begin(self) -> BeamSearch:
        return BeamSearch(self._beam, self._end_tokens, self.leader.request.max_tokens)

    def _go_on(self, chosen: Sequence[Choice]) -> None:
        """Make the members those that continue the chosen beams, in their order, each with its next token."""
        before, members, kept = self.members, list[core.Sequence | None](), set[int]()
        for choice in chosen:
            first = choice.parent not in kept
            kept.add(choice.parent)
            members.append(before[choice.parent] if first else None)
        idle = [member for place, member in enumerate(before) if place not in kept]
        idle.sort(key=lambda member: member is self.leader)
        for member in idle:
            self._tables.release(member)
        beams = [
            self._part(before[choice.parent], idle.pop() if idle else None) if member is None else member
            for member, choice in zip(members, chosen, strict=True)
        ]
        if self.leader in idle:  # it stands for the others, so that another goes in its place
            idle[-1], beams[0] = beams[0], self._part(beams[0], self.leader)
            self._tables.release(idle[-1])
        for gone in idle:
            gone.status = Status.FINISHED
        for beam, choice in zip(beams, chosen, strict=True):
            beam.tokens.append(choice.token)
        self.members = beams

    def _part(self, parent: core.Sequence, child: core.Sequence | None) -> core.Sequence:
        """Make `child`, or else a new sequence, go on from where `parent` is."""
        if child is None:
            request, leader = parent.request, self.leader
            child = core.Sequence(request, leader.arrival, [], leader.output, leader.rng, Status.RUNNING, group=self)
        child.tokens = list(parent.tokens)
        child.sampler = None  # a grammar follows the other text from its beginning
        child.charged, child.scored = parent.charged, parent.scored
        child.first_token_at, child.last_token_at = parent.first_token_at, parent.last_token_at
        self._tables.share(parent, child)
        return child

    def _answer(self) -> Delta:
        """Return the likeliest completions. A grammar allows texts: one text in several tokens is one answer."""
        deltas = [self._delta(hypothesis) for hypothesis in self._search.complete]
        if self.leader.request.sampling.constraint is not None:
            texts = {delta.text: delta for delta in reversed(deltas)}  # the likeliest spelling of each stays
            deltas = [delta for delta in deltas if texts[delta.text] is delta]
        best, *others = deltas[: self._beam.returned]
        return replace(best, others=tuple(others))

    def _delta(self, hypothesis: Hypothesis) -> Delta:
        request = self.leader.request
        tokens = tuple(entry.token_id for entry in hypothesis.entries)
        output = self._make_output(request)
        shown = tokens[:-1] if hypothesis.ended else tokens
        text = "".join([*map(output.push, shown), output.finish()])
        return Delta(
            text,
            tokens,
            () if request.sampling.logprobs is None else hypothesis.entries,
            "stop" if hypothesis.ended else request.at_limit,
            self.leader.usage(),
            prompt_logprobs=tuple(self.leader.scored),
        )
