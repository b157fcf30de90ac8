"""The audit log as tests look at it: the acts of some kinds, without what the set-up of a test recorded."""

from __future__ import annotations

from marketplace.accounts.audit import entries_of
from marketplace.accounts.models import Organization


def acts_of(organization: Organization, *acts: str) -> list[str]:
    """Return the organization's acts of these kinds (`noun`) or names (`noun.verb`), newest first."""
    found = [entry.act for entry in entries_of(organization=organization)]
    return [act for act in found if act in acts or act.partition(".")[0] in acts]
