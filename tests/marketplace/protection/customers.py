"""Copiers and honest customers before the alarm of `marketplace.protection.policies`, simulated for 30 days each.

The messages are numbers and the answers drawn from shares, so the figures depend on the seed alone. The number of
different messages has the error of Valkey's HyperLogLog, .81 %.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from marketplace.protection.policies import ALARM_AT, Asked, is_copying

DAYS = 30
HLL_ERROR = 0.0081
LATEST = 400  # the different message by which a copier must have raised the alarm
_EACH = 2_000  # calls of which each one is judged, as in the gateway; of later ones each fiftieth
Call = tuple[int, int]  # the message's number, the answer's
Customer = Callable[[random.Random], Iterator[Call]]


@dataclass(frozen=True)
class Kind:
    """A kind of customer. `must`: True where each must raise the alarm, False where none may, None where it is told."""

    name: str
    must: bool | None
    calls: Customer


@dataclass(frozen=True)
class Outcome:
    """The different message at which each customer of a kind raised the alarm; None for those who did not."""

    kind: Kind
    alarms: tuple[int | None, ...]

    @property
    def raised(self) -> list[int]:
        return sorted(alarm for alarm in self.alarms if alarm is not None)

    @property
    def passes(self) -> bool:
        """Return whether it came out as it must."""
        if self.kind.must is None:
            return True
        if not self.kind.must:
            return not self.raised
        return len(self.raised) == len(self.alarms) and self.raised[-1] < LATEST


def first_alarm(calls: Iterator[Call], draw: random.Random) -> int | None:
    """Return the number of different messages at the first alarm, as the counters in Valkey see them."""
    estimate = 1 + draw.gauss(0, HLL_ERROR)
    seen: set[int] = set()
    answers: Counter[int] = Counter()
    for n, (message, answer) in enumerate(calls, start=1):
        seen.add(message)
        answers[answer] += 1
        if len(seen) * estimate < ALARM_AT or (n > _EACH and n % 50):
            continue
        if is_copying(Asked(round(len(seen) * estimate), n, tuple(answers.values()))):
            return len(seen)
    return None


def skewed(draw: random.Random) -> list[float]:
    """Return shares of answers as tasks from life have them: by Zipf's law, the rarest by far the rarer."""
    exponent = draw.uniform(0.8, 1.4)
    return [1 / place**exponent for place in range(1, draw.randint(6, 24) + 1)]


def even(draw: random.Random) -> list[float]:
    """Return the shares of a copier who spreads its messages over the task, as well as that can be done beforehand."""
    return [draw.gammavariate(50, 1) for _ in range(draw.randint(6, 24))]


def _fresh(draw: random.Random, shares: list[float], per_day: Callable[[], int], *, repeats: float) -> Iterator[Call]:
    """Yield calls of DAYS days: new messages, or with this probability one of a thousand that come again and again."""
    answers, limits = range(len(shares)), list(itertools.accumulate(shares))
    usual, new = draw.choices(answers, cum_weights=limits, k=1_000), itertools.count(1_000)
    for _ in range(DAYS):
        for _ in range(per_day()):
            if draw.random() < repeats:
                message = draw.randrange(1_000)
                yield message, usual[message]
            else:
                yield next(new), draw.choices(answers, cum_weights=limits)[0]


def developer(draw: random.Random) -> Iterator[Call]:
    """Try the model out for three days."""
    return itertools.islice(_fresh(draw, skewed(draw), lambda: draw.randint(5, 40), repeats=0.3), 100)


def evaluator(draw: random.Random) -> Iterator[Call]:
    """Run one balanced set of 72 to 300 rows, once a day."""
    rows, answers = draw.randint(72, 300), draw.randint(5, 24)
    return ((row, row % answers) for _ in range(DAYS) for row in range(rows))


def production(draw: random.Random) -> Iterator[Call]:
    """Send 20 to 400 messages of a task from life on each day."""
    usual = draw.randint(20, 400)
    return _fresh(draw, skewed(draw), lambda: draw.randint(usual // 2, usual), repeats=draw.uniform(0, 0.6))


def high_volume(draw: random.Random) -> Iterator[Call]:
    """Send 500 to 1,500 messages on each day from the first one on, nearly all of them different."""
    usual = draw.randint(500, 1_500)
    return _fresh(draw, skewed(draw), lambda: usual, repeats=draw.uniform(0, 0.1))


def backfill(draw: random.Random) -> Iterator[Call]:
    """Send 6,000 messages on the first day, and a hundred on each one after it."""
    days = itertools.chain([6_000], itertools.repeat(100))
    return _fresh(draw, skewed(draw), lambda: next(days), repeats=0)


def copier(draw: random.Random) -> Iterator[Call]:
    """Send 1,600 different messages that are spread over the task, in one day."""
    return itertools.islice(_fresh(draw, even(draw), lambda: 1_600, repeats=0), 1_600)


def slow_copier(draw: random.Random) -> Iterator[Call]:
    """Send 14 different messages on each day, in the hope that nobody adds them up."""
    return _fresh(draw, even(draw), lambda: 14, repeats=0)


def padding_copier(draw: random.Random) -> Iterator[Call]:
    """Send each message four times, so that few of the calls are different."""
    return (call for call in copier(draw) for _ in range(4))


def hiding_copier(draw: random.Random) -> Iterator[Call]:
    """Send messages as they come in life, without a thought for the rare answers."""
    return itertools.islice(_fresh(draw, skewed(draw), lambda: 1_600, repeats=0), 1_600)


def even_production(draw: random.Random) -> Iterator[Call]:
    """Send messages of a task whose answers happen to come equally often, 100 on each day."""
    return _fresh(draw, even(draw), lambda: 100, repeats=0)


def large_evaluator(draw: random.Random) -> Iterator[Call]:
    """Run a balanced set of 1,000 rows once."""
    answers = draw.randint(5, 24)
    return ((row, row % answers) for row in range(1_000))


def free_text(draw: random.Random) -> Iterator[Call]:
    """Send 100 messages on each day to a model that answers in free text."""
    return ((message, message) for message, _ in _fresh(draw, [1.0], lambda: 100, repeats=0))


KINDS = (
    Kind("copier, 1,600 messages in a day", True, copier),
    Kind("copier, 14 messages a day", True, slow_copier),
    Kind("copier, each message four times", True, padding_copier),
    Kind("developer who tries it out", False, developer),
    Kind("evaluator, up to 300 balanced rows a day", False, evaluator),
    Kind("production, 20 to 400 a day", False, production),
    Kind("production, 500 to 1,500 a day", False, high_volume),
    Kind("backfill of 6,000, then 100 a day", False, backfill),
    Kind("copier with messages as they come in life", None, hiding_copier),
    Kind("production of an even task", None, even_production),
    Kind("evaluator, 1,000 balanced rows", None, large_evaluator),
    Kind("production, answers in free text", None, free_text),
)


def simulate(kind: Kind, *, customers: int, seed: int) -> Outcome:
    """Return when each of so many customers raised the alarm. Equal arguments give equal outcomes."""
    draws = (random.Random(f"{kind.name} {seed} {n}") for n in range(customers))
    return Outcome(kind, tuple(first_alarm(kind.calls(draw), draw) for draw in draws))
