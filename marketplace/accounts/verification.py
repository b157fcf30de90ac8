"""The one rule about e-mail addresses: a person with no verified address cannot publish and cannot spend.

It holds for what people do in person and through keys that they made. Predictions under keys that exist are not asked.
"""

from __future__ import annotations

from uuid import UUID

from allauth.account.models import EmailAddress

from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.models import User


class EmailUnverified(NotAllowed):
    """The acting person has not verified an address. Nothing changed."""

    code = "email_unverified"

    def __init__(self) -> None:
        """Say what to do."""
        super().__init__("verify your e-mail address first: open the link that was mailed to you")


def is_verified(*, user: User) -> bool:
    """Return whether the person has shown that a mail address is theirs."""
    return bool(list(EmailAddress.objects.filter(user=user, verified=True)))  # loaded, which checks their seals


def require_verified(*, by: UUID | None) -> None:
    """Check the person who acts, by id. Raises EmailUnverified.

    None is the platform itself, or a key whose maker has left: a key outlives its maker, and was made by a verified
    person.
    """
    if by is None:
        return
    person = User.objects.filter(pk=by, is_active=True).first()
    if person is not None and not is_verified(user=person):
        raise EmailUnverified


def unverified_address(*, user: User) -> EmailAddress | None:
    """Return the address to which a link can be sent again, or None for a person with a verified address."""
    addresses = list(EmailAddress.objects.filter(user=user).order_by("-primary", "pk"))
    if any(one.verified for one in addresses):
        return None
    if addresses:
        return addresses[0]
    return EmailAddress.objects.create(user=user, email=user.email, primary=True, verified=False)


def mark_verified(*, user: User) -> None:
    """Note that an operator vouches for the person's address; for commands that make users."""
    EmailAddress.objects.update_or_create(user=user, email=user.email, defaults={"verified": True, "primary": True})
