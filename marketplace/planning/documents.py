"""What `python -m capacity plan` and `review` print, as pages read it. The rest of it is for the commands."""

from __future__ import annotations

import datetime
import re
from typing import Any

import msgspec

from marketplace.accounts.errors import InvalidInput
from marketplace.planning.errors import NotMade

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class _Profiled(msgspec.Struct, frozen=True):
    fingerprint: str


class _Profile(msgspec.Struct, frozen=True):
    model: _Profiled


class Table(msgspec.Struct, frozen=True):
    """A table: what to have, the money, the assumptions. note: a sentence below it, or empty"""

    name: str
    title: str
    note: str
    head: list[str]
    rows: list[list[str]]


class Figure(msgspec.Struct, frozen=True):
    """A picture with its table. svg: text of an `<svg>`, not to be trusted before `marketplace.web.figures`.

    note: a sentence below it, or empty
    """

    name: str
    title: str
    svg: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""


class Step(msgspec.Struct, frozen=True):
    """One of the 13 steps. of: the base that it is about, or empty; source: measured, simulated, …

    worked: the formula with the plan's numbers, or empty
    """

    number: int
    title: str
    of: str
    inputs: dict[str, str]
    formula: str
    result: str
    source: str
    warnings: list[str]
    worked: str = ""


class PoolTargets(msgspec.Struct, frozen=True):
    """What the plan tells the autoscaler. mu: replicas → calls/s that they bear together within the promise."""

    mu: dict[str, float]


class Targets(msgspec.Struct, frozen=True):
    """Targets by the name of the base."""

    pools: dict[str, PoolTargets]


class Limits(msgspec.Struct, frozen=True):
    """The promise of a latency class. ttft: seconds to the first token"""

    ttft: float


class PromisedBase(msgspec.Struct, frozen=True):
    """A base of the plan: fingerprint and name.

    curve: of one replica, (calls/s, seconds within which 95 % of first tokens come); chosen: the operating point on
    it; promises: by latency class. Plans of earlier versions have no curve
    """

    base: str
    name: str
    curve: list[tuple[float, float]] = []
    chosen: tuple[float, float] | None = None
    promises: dict[str, Limits] = {}


class PlanDocument(msgspec.Struct, frozen=True):
    """A plan. Plans of earlier versions have no tables."""

    made_on: str
    check_by: str
    source: str
    summary: list[str]
    warnings: list[str]
    figures: list[Figure]
    steps: list[Step]
    targets: Targets
    promised: list[PromisedBase]
    tables: list[Table] = []

    @property
    def made(self) -> datetime.date:
        """Return the day of the plan."""
        return datetime.date.fromisoformat(self.made_on)

    @property
    def checked_by(self) -> datetime.date:
        """Return the day by which the plan is checked again."""
        return datetime.date.fromisoformat(self.check_by)


class BaseReview(msgspec.Struct, frozen=True):
    """One base against what happened. wape: Σ|error| / Σ calls; peak: seen / planned; others: shares of 1."""

    name: str
    hours: int
    wape: float
    covered: float
    peak: float
    attained: float | None
    stated: tuple[float, float]
    sampled: int
    kept: bool | None
    svg: str


class ReviewDocument(msgspec.Struct, frozen=True):
    """The plan before against what happened; error: why it could not be judged, or empty."""

    plan: str = ""
    held: bool | None = None
    bases: list[BaseReview] = []
    error: str = ""


def profiled_base(content: bytes) -> str:
    """Return the fingerprint of the base that a profile is of. Raises InvalidInput for a file that is none."""
    try:
        found = msgspec.json.decode(content, type=_Profile).model.fingerprint
    except msgspec.MsgspecError:
        found = ""
    if not _FINGERPRINT.fullmatch(found):
        raise InvalidInput("is no profile of `python -m capacity calibrate`", field="file")
    return found


def plan_document(result: dict[str, Any]) -> PlanDocument:
    """Return a plan as values. Raises NotMade for one that this version cannot read."""
    try:
        return msgspec.convert(result, PlanDocument)
    except msgspec.ValidationError as error:
        raise NotMade(f"the plan cannot be read: {error}") from None


def review_document(review: dict[str, Any]) -> ReviewDocument:
    """Return a review as values. Raises NotMade for one that this version cannot read."""
    try:
        return msgspec.convert(review, ReviewDocument)
    except msgspec.ValidationError as error:
        raise NotMade(f"the review cannot be read: {error}") from None
