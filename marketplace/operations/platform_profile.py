"""The platform's own legal person, without which no paper is issued, and the organization that has it."""

from __future__ import annotations

from django.db import transaction

from billing.models import BillingProfile
from billing.papers.profiles import ProfileText, profile_of, save_profile
from marketplace.accounts.models import User
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.accounts.selectors import organization_named
from marketplace.accounts.services import create_organization

PLATFORM_NAME = "Intarsia"


def platform_profile() -> BillingProfile | None:
    """Return the billing profile of the platform, or None before there is one."""
    organization = organization_named(PLATFORM_SLUG)
    return profile_of(organization) if organization else None


@transaction.atomic
def write_platform_profile(*, by: User, text: ProfileText) -> BillingProfile:
    """Write the legal person that every paper names as the seller; papers that waited are issued then.

    A platform that nobody seeded has no organization of its own yet, and its name is reserved: the first profile makes
    it, owned by whoever writes it. Raises InvalidInput.
    """
    organization = organization_named(PLATFORM_SLUG)
    if organization is None:
        organization = create_organization(owner=by, slug=PLATFORM_SLUG, name=PLATFORM_NAME, allow_reserved=True)
    return save_profile(organization=organization, text=text, by=by)
