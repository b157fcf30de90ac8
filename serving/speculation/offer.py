"""A guess of the tokens that come next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Source(Enum):
    """Where a draft comes from."""

    ANSWERS = "answers"
    SCHEMA = "schema"
    LOOKUP = "lookup"


@dataclass(frozen=True, slots=True)
class Offer:
    """A draft and, for each of its tokens, the probability that the model chooses it and all before it: never rising.

    source: None for a draft that nobody offered
    """

    tokens: tuple[int, ...] = ()
    reached: tuple[float, ...] = ()
    source: Source | None = None

    @property
    def expected(self) -> float:
        """Return how many of the tokens will be accepted, on average."""
        return sum(self.reached)


NOTHING = Offer()


def constant(tokens: tuple[int, ...], rate: float, source: Source) -> Offer:
    """Make an offer of tokens each of which is accepted with probability `rate` once those before it were."""
    return Offer(tokens, tuple(rate ** (depth + 1) for depth in range(len(tokens))), source)
