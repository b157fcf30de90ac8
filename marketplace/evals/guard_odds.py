"""A guard on honest rows: what it says of each, and the threshold that follows for the model that it shall guard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from marketplace.calls import ChatAnswer, ChatCall
from marketplace.catalog.models import Version
from marketplace.evals.quotes import SERVICE_TIER
from marketplace.guards.attacks import NoVerdict, body_of, log_odds, pieces_of, threshold_for
from protocol.eval_rows import EvalRow


class NoThreshold(Exception):
    """No threshold can be set; the text is a sentence without a row's text."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Log-odds in thousandths of a nat above which a text is refused, and how many of the rows it refuses."""

    milli: int
    rows: int
    flagged: int


class GuardOdds:
    """The verdicts of a guard so far, the worst piece of each row."""

    def __init__(self, guard: Version, rows: list[EvalRow]) -> None:
        """Take the version of the guard, and the rows."""
        self._guard, self._rows = guard, rows
        self._odds: dict[int, float] = {}

    def to_ask(self) -> Iterator[ChatCall]:
        """Yield the calls that judge the texts of each row that are not the assistant's, piece by piece."""
        name = f"{self._guard.model.full_name}@{self._guard.number}"
        for number, row in enumerate(self._rows, start=1):
            texts = [str(one["content"]) for one in row.messages if one["role"] != "assistant" and one["content"]]
            for part, piece in enumerate(piece for text in texts for piece in pieces_of(text)):
                body = body_of(name, piece) | {"service_tier": SERVICE_TIER}
                yield ChatCall(f"{number}-{part}", body, checkpoint=self._guard.model.base_model.fingerprint)

    @property
    def done(self) -> int:
        """Return how many rows were judged, at least in part."""
        return len(self._odds)

    def add(self, answer: ChatAnswer) -> None:
        """Take a verdict. Raises NoThreshold for an answer without one."""
        row = int(answer.name.partition("-")[0])
        try:
            odds = log_odds({"choices": [answer.choice]})
        except NoVerdict:
            raise NoThreshold("the guard did not answer with logprobs") from None
        self._odds[row] = max(odds, self._odds.get(row, odds))

    def threshold(self) -> Threshold:
        """Return the threshold. Raises NoThreshold for too few rows."""
        odds = list(self._odds.values())
        try:
            # Rounded up: a row that is not flagged before is not flagged after.
            milli = int(-(-threshold_for(odds) * 1000 // 1))
        except ValueError as error:
            raise NoThreshold(str(error)) from None
        return Threshold(milli, len(odds), sum(one * 1000 > milli for one in odds))
