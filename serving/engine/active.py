"""The requests in flight: each sequence and the stream that receives its deltas."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterable

from serving.core import Delta, OutputText, Request, Sequence
from serving.engine.beams import BeamGroup
from serving.errors import EngineError, NonFiniteOutput
from serving.handle import Outbox, RequestHandle, Times
from serving.scheduler.tables import BlockTables
from serving.steps import SampledToken


class ActiveRequests:
    """Request id → sequence and stream. Every request ends once, through `fail` or with a finish reason.

    on_finish: called with each sequence that ends, to free what it holds, and with whether it failed
    tables: where the beams of a search share their blocks
    """

    def __init__(
        self,
        make_output: Callable[[Request], OutputText],
        eos_token_ids: frozenset[int],
        on_finish: Callable[[Sequence, bool], None],
        tables: BlockTables,
    ) -> None:
        self._make_output, self.eos_token_ids, self._on_finish = make_output, eos_token_ids, on_finish
        self._tables = tables
        self._active: dict[str, tuple[Sequence, RequestHandle | None]] = {}
        self._outbox = Outbox()

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._active

    def __getitem__(self, request_id: str) -> tuple[Sequence, RequestHandle | None]:
        return self._active[request_id]

    def sequences(self) -> list[Sequence]:
        return [sequence for sequence, _ in self._active.values()]

    def open(self, request: Request, handle: RequestHandle | None, now: float) -> Sequence | None:
        """Make a sequence of `request`. Returns None, and sends an error to the stream, if its id is in use."""
        if request.request_id in self._active:
            if handle is not None:
                self._outbox.put(handle, EngineError(f"request id {request.request_id} is in use"))
            return None
        seed = request.sampling.seed
        sequence = Sequence(
            request,
            now,
            list(request.prompt_token_ids),
            self._make_output(request),
            random.Random(secrets.randbits(64) if seed is None else seed),
        )
        if request.sampling.beam is not None:
            sequence.group = BeamGroup(sequence, self._tables, self.eos_token_ids, self._make_output)
        self._active[request.request_id] = (sequence, handle)
        return sequence

    def append(self, sequence: Sequence, sampled: SampledToken) -> None:
        """Deliver what a step sampled for a sequence: a token, an embedding, the scores of a prompt alone, or the
        reason why there is nothing."""
        request = sequence.request
        if sampled.embedding is not None:
            self._deliver(sequence, Delta("", (), (), "stop", sequence.usage(), sampled.embedding))
            self._close(sequence)
            return
        if sampled.token_id is None:
            self.fail([sequence], sampled.error or NonFiniteOutput("the model's output is not finite"))
            return
        scored = () if sequence.output_tokens else tuple(sequence.scored)
        if not all(math.isfinite(entry.logprob) for entry in scored):
            self.fail([sequence], NonFiniteOutput("the model's output is not finite"))
            return
        if isinstance(sequence.group, BeamGroup):
            self._extend(sequence.group, sequence, sampled)
            return
        if not request.max_tokens:  # the prompt alone was wanted
            self._deliver(sequence, Delta("", (), (), "length", sequence.usage(), prompt_logprobs=scored))
            self._close(sequence)
            return
        sequence.tokens.append(sampled.token_id)
        ended = sampled.token_id in self.eos_token_ids and not request.sampling.ignore_eos
        text = "" if ended else sequence.output.push(sampled.token_id)
        reason = "stop" if ended or sequence.output.stopped else None
        if reason is None and sequence.output_tokens >= request.max_tokens:
            reason = request.at_limit
        if reason is not None:
            text += sequence.output.finish()
            reason = "stop" if sequence.output.stopped else reason
        logprobs = () if sampled.logprob is None else (sampled.logprob,)
        usage = sequence.usage()
        self._deliver(sequence, Delta(text, (sampled.token_id,), logprobs, reason, usage, prompt_logprobs=scored))
        if reason is not None:
            self._close(sequence)

    def _extend(self, group: BeamGroup, member: Sequence, sampled: SampledToken) -> None:
        delta = group.add(member, sampled)
        if delta is not None:
            self._deliver(group.leader, delta)
            if delta.finish_reason is not None:
                self._close(group.leader)

    def cancel(self, request_id: str) -> None:
        """End a request, or every request of a family, with finish_reason "cancelled"; unknown ids are ignored."""
        for sequence in self.sequences():
            if request_id not in (sequence.request.request_id, sequence.request.family):
                continue
            self._deliver(sequence, Delta("", (), (), "cancelled", sequence.usage()))
            self._close(sequence)

    def fail(self, sequences: Iterable[Sequence], error: EngineError) -> None:
        """End requests with an error, a whole group for any of its members; requests that have ended already are left
        alone."""
        for sequence in sequences:
            if sequence.request.request_id in self._active:
                self._deliver(sequence, error)
                self._close(sequence, failed=True)

    def flush(self) -> None:
        """Hand over what was delivered since the last call."""
        self._outbox.flush()

    def _close(self, sequence: Sequence, *, failed: bool = False) -> None:
        sequence, handle = self._active.pop(sequence.request.request_id)  # of a group, its leader
        if handle is not None:
            handle.times = Times(sequence.arrival, sequence.admitted_at, sequence.first_token_at, sequence.steps)
        self._on_finish(sequence, failed)

    def _deliver(self, sequence: Sequence, item: Delta | EngineError) -> None:
        _, handle = self._active[sequence.request.request_id]
        if handle is not None:
            self._outbox.put(handle, item)
