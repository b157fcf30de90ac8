"""One version on two checkpoints: the calls of a run that clears it, and what they say; texts are dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from marketplace.calls import ChatAnswer, ChatCall
from marketplace.evals.clearances import Compared
from marketplace.evals.models import MOST_COMPARED, EvalRun
from marketplace.evals.quotes import SERVICE_TIER, answer_limit
from protocol.eval_rows import EvalRow, Scorer
from protocol.scorers import PatternRefused, is_right

_CHECKPOINT, _REFERENCE = "checkpoint", "reference"


class Comparison:
    """Each row is asked of the version on the run's checkpoint and on the reference of its line, for nothing."""

    def __init__(self, run: EvalRun, scorer: Scorer, rows: list[EvalRow]) -> None:
        """Take the run, and its rows, of which the first thousand are asked."""
        assert run.checkpoint is not None, "other runs compare with the bare base"
        self._version, self._scorer, self._rows = run.version, scorer, rows[:MOST_COMPARED]
        self._places = {
            _CHECKPOINT: run.checkpoint.fingerprint,
            _REFERENCE: run.version.model.base_model.fingerprint,
        }
        self._right = {_CHECKPOINT: 0, _REFERENCE: 0}
        self._first: dict[int, bytes] = {}  # SHA-256 of the answer that came first, by row
        self._same = 0
        self.done = 0

    def to_ask(self) -> Iterator[ChatCall]:
        """Yield both calls of each row."""
        version = self._version
        model = f"{version.model.full_name}@{version.number}"
        limit = {} if version.contract else {"max_tokens": answer_limit(version), "temperature": 0}
        for number, row in enumerate(self._rows, start=1):
            body = {"model": model, "messages": row.messages, "service_tier": SERVICE_TIER, **limit}
            for place, fingerprint in self._places.items():
                yield ChatCall(f"{number}-{place}", body, checkpoint=fingerprint, measures=True)

    def add(self, answer: ChatAnswer) -> None:
        """Judge the answer of a call of `to_ask`. Raises PatternRefused, which then names the row."""
        number, _, place = answer.name.partition("-")
        try:
            self._right[place] += is_right(self._scorer, self._rows[int(number) - 1], answer.text)
        except PatternRefused as refusal:
            raise PatternRefused(f"row {number}: {refusal}") from None
        digest = hashlib.sha256(answer.text.encode()).digest()
        other = self._first.pop(int(number), None)
        if other is None:
            self._first[int(number)] = digest
        else:
            self._same += other == digest
        self.done += 1

    def figure(self) -> Compared:
        """Return the figure of all rows."""
        return Compared(len(self._rows), self._right[_CHECKPOINT], self._right[_REFERENCE], self._same)
