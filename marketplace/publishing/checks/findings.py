"""One finding of a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

COPY = "copy"  # the check whose finding refuses at once
PRICE = "price"


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason for a person to look.

    message: a sentence for creator and staff
    subject: the other thing that it is about, so that what a person accepted once is known again
    amount: for the check `price`, nano-dollars: what is accepted at one price is accepted at every higher one
    """

    check: str
    message: str
    subject: str = ""
    amount: int | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return the finding as a review keeps it."""
        return asdict(self)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Finding:
        """Read what `to_fields` wrote."""
        return cls(**fields)


def not_accepted(findings: Iterable[Finding], accepted: Iterable[Finding]) -> list[Finding]:
    """Return the findings that no person has accepted for this model before."""
    known = list(accepted)
    return [one for one in findings if not any(_covers(old, one) for old in known)]


def _covers(old: Finding, new: Finding) -> bool:
    if (old.check, old.subject) != (new.check, new.subject):
        return False
    return old.amount is None or (new.amount is not None and new.amount >= old.amount)
