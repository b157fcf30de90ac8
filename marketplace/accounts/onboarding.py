"""What other apps must do when an organization is created, without this app importing them.

`create_organization` calls every registered opener inside its own transaction, so an organization without, say, its
billing accounts cannot exist. The composition root (`marketplace.api.apps`) registers the openers when Django starts:
a plain list of functions in a known order, not signals with unknown listeners.
"""

from __future__ import annotations

from typing import Protocol

from marketplace.accounts.models import Organization


class OrganizationOpener(Protocol):
    def __call__(self, *, organization: Organization) -> object: ...


_openers: list[OrganizationOpener] = []


def register_organization_opener(opener: OrganizationOpener) -> None:
    """Have `opener(organization=…)` called in the transaction that creates each organization. Twice is once."""
    if opener not in _openers:
        _openers.append(opener)


def open_organization(*, organization: Organization) -> None:
    """Call every opener; whatever one raises undoes the creation."""
    for opener in _openers:
        opener(organization=organization)
