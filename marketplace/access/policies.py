"""Rules of admission: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marketplace.access.models import AccessRequest

State = AccessRequest.State
ANSWERS: Mapping[str, str] = {
    "grant": State.GRANTED,
    "decline": State.DECLINED,
    "revoke": State.REVOKED,
}
# The states in which each answer means something.
ANSWERABLE: Mapping[str, frozenset[str]] = {
    "grant": frozenset({State.ASKED, State.DECLINED, State.REVOKED}),
    "decline": frozenset({State.ASKED}),
    "revoke": frozenset({State.GRANTED}),
}


@dataclass(frozen=True, slots=True)
class Admission:
    """The conditions between one organization and its first call of a model, and whether they are met.

    A model without a condition, and the creator's own organization, have both of them met.
    """

    access_granted: bool = True
    licence_accepted: bool = True

    @property
    def is_admitted(self) -> bool:
        """Return whether calls go through."""
        return self.refusal_code is None

    @property
    def refusal_code(self) -> str | None:
        """Return the code of the refusal that a call gets; access is asked for before a licence is accepted."""
        if not self.access_granted:
            return "access_not_granted"
        return None if self.licence_accepted else "licence_not_accepted"
