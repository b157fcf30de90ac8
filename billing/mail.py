"""Mails to the members of an organization who look after its money."""

from __future__ import annotations

import logging

from django.core.mail import EmailMessage

from marketplace.accounts.models import Membership, Organization

logger = logging.getLogger(__name__)

_TOLD = (Membership.Role.OWNER, Membership.Role.ADMIN, Membership.Role.BILLING)


def tell_members(organization: Organization, subject: str, text: str) -> None:
    """Write to the members who look after money. A mail that cannot be sent is logged: the wallet says the same."""
    addresses = Membership.objects.filter(organization=organization, role__in=_TOLD, user__is_active=True)
    recipients = list(addresses.values_list("user__email", flat=True))
    try:
        EmailMessage(f"{subject}: {organization.name}"[:200].replace("\n", " "), text, bcc=recipients).send()
    except OSError:
        logger.exception("a mail about money was not sent")
