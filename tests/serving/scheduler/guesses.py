"""A drafter for simulated traces."""

from __future__ import annotations

import random

from serving.core import Sequence
from serving.speculation import Drafter, Offer, Source


class Guesses(Drafter):
    """Drafts of any length and promise, right or wrong."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def offer(self, sequence: Sequence, most: int, now: float) -> Offer:
        count = min(max(0, most), self._rng.randint(0, 8))
        reached = sorted((self._rng.random() for _ in range(count)), reverse=True)
        return Offer((7,) * count, tuple(reached), self._rng.choice(tuple(Source)))
