"""The decisions, as pure functions: whether calls look like the making of a copy, and how many a customer may make.

The figures come from simulated customers (`tests/marketplace/protection/customers.py`); docs/copying.md says what they
can and cannot tell apart.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

ALARM_AT = 350  # different messages: more than an evaluation set has, less than the 400 that copy a narrow task
EVEN = 0.92  # of the answers that there are, the share that the messages use as if each came equally often
FEWEST_ANSWERS = 5  # of two to four answers, honest messages are often as even as those of a copier
MOST_ANSWERS = 64  # a model with more has no closed set of answers
_STANDARD_ERRORS = 2.0
_RARE = 0.01  # a smaller share of the answers is a slip of the model rather than an answer of the task
WINDOW_DAYS = 28  # the window under way and the one before it are counted together

ASK_CALLS_PER_DAY = 50  # of a noticed customer, for a model without an introductory allowance
SLOW_SECONDS = 300  # a call
DAY_SECONDS = 86_400
TRUST_AFTER = timedelta(days=28)
TRUST_WEEKS = 3  # different weeks with calls
TRUST_PAID_NANO_USD = 5 * 10**9
_NO_LIMIT = 1_000_000  # calls per day: an allowance that has grown to this is none

Answer = Literal["tell", "slow", "ask", "stop"]


@dataclass(frozen=True, slots=True)
class Asked:
    """The messages that a customer has sent: how many different ones, in how many calls, and how often each answer."""

    distinct: int
    calls: int
    answers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a model. `on_copying` empty: no message is counted."""

    calls_per_day: int | None
    on_copying: str

    @property
    def active(self) -> bool:
        """Return whether a call has anything to do with them."""
        return self.calls_per_day is not None or bool(self.on_copying)


@dataclass(frozen=True, slots=True)
class Standing:
    """One customer of a model, as the rules see it."""

    first_seen_at: datetime
    trusted: bool = False
    granted_calls_per_day: int | None = None
    noticed: bool = False
    measure: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """At most `limit` calls in each window of `seconds`; `code` is that of the refusal."""

    limit: int
    seconds: int
    code: Literal["introductory_allowance", "extraction_slowed", "extraction_asked"]


def evenness(answers: Sequence[int]) -> float | None:
    """Return how evenly the answers came, 1 if each came equally often; None where they are no closed set.

    That is exp(entropy) over the number of answers, with Miller and Madow's correction for a small sample, which looks
    less even than what it was drawn from, and less two standard errors: a skewed task looks even by chance.
    """
    total = sum(answers)
    common = [count for count in answers if count >= max(2, total * _RARE)]
    if len(common) < FEWEST_ANSWERS or len(answers) > MOST_ANSWERS:
        return None
    total = sum(common)
    logs = [(count / total, math.log(count / total)) for count in common]
    entropy = -sum(share * log for share, log in logs)
    variance = max(0.0, sum(share * log * log for share, log in logs) - entropy**2) / total
    entropy += (len(common) - 1) / (2 * total) - _STANDARD_ERRORS * math.sqrt(variance)
    return min(1.0, math.exp(entropy) / len(common))


def is_copying(asked: Asked) -> bool:
    """Return whether so many different messages, spread so evenly over the task, look like the making of a copy.

    Repeats are no excuse: to send each message several times costs a copier little. Where the answers are no closed
    set, or too few of them are known, the number of messages decides alone.
    """
    if asked.distinct < ALARM_AT:
        return False
    if sum(asked.answers) * 2 < asked.distinct:  # answers that nobody waited for
        return True
    even = evenness(asked.answers)
    return even is None or even >= EVEN


def allowance(calls_per_day: int, *, first_seen_at: datetime, now: datetime) -> int | None:
    """Return the calls of this day: doubled in each week since the first call. None: it has grown beyond any use."""
    weeks = max(0, (now - first_seen_at) // timedelta(weeks=1))
    grown = calls_per_day << min(weeks, 32)
    return None if grown >= _NO_LIMIT else grown


def measure_of(rules: Rules, standing: Standing) -> str:
    """Return what applies to a customer: the creator's answer, or else the model's rule; empty: nothing."""
    if standing.trusted or not standing.noticed or not rules.on_copying:
        return ""
    return standing.measure or rules.on_copying


def gate_of(rules: Rules, standing: Standing, *, now: datetime) -> Gate | None:
    """Return the limit of a customer's calls. None: there is none. (`stop` is no limit: see `measure_of`.)"""
    if standing.trusted:
        return None
    measure = measure_of(rules, standing)
    if measure == "slow":
        return Gate(1, SLOW_SECONDS, "extraction_slowed")
    if measure == "ask":
        return Gate(rules.calls_per_day or ASK_CALLS_PER_DAY, DAY_SECONDS, "extraction_asked")
    if rules.calls_per_day is None:
        return None
    grown = allowance(rules.calls_per_day, first_seen_at=standing.first_seen_at, now=now)
    if grown is None:
        return None
    return Gate(max(grown, standing.granted_calls_per_day or 0), DAY_SECONDS, "introductory_allowance")


def pseudonym(*, model_id: UUID, organization_id: UUID) -> str:
    """Return the name by which a creator knows a customer of one model: the same each time, and of nobody else."""
    return "Customer " + hashlib.blake2b(organization_id.bytes, key=model_id.bytes, digest_size=4).hexdigest()
