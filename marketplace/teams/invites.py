"""Invites: made, mailed, taken back and accepted.

The link proves the address: it was mailed there and nowhere else. So an account with that very address joins, and the
address counts as verified from then on; an account with another address is refused.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from uuid import UUID

from allauth.account.models import EmailAddress
from django.conf import settings
from django.core import signing
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from billing.selectors import has_paid
from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Membership, Organization, User
from marketplace.teams import roles
from marketplace.teams.errors import InviteGone, WrongAddress
from marketplace.teams.mails import send
from marketplace.teams.members import role_of
from marketplace.teams.models import Invite, InviteMail

LASTS = timedelta(days=7)
MAX_MAILS_A_DAY = 50  # of one organization that has paid, mails that are sent again included
MAX_UNPAID_MAILS_A_DAY = 5  # of one that never has: mail to strangers costs nothing to ask for
MAX_MEMBERS = 1_000  # with open invites
_SIGNER = signing.Signer(salt="marketplace.teams.invites")


def invite(*, organization: Organization, by: User, email: str, role: str) -> Invite:
    """Mail a link by which `email` joins with `role`; an open invite of the address is replaced.

    Raises InvalidInput, NotAllowed (the role of `by`, or the limit of a day), Conflict for a member.
    """
    address = email.strip().lower()
    try:
        validate_email(address)
    except ValidationError:
        raise InvalidInput("must be an e-mail address", field="email") from None
    if len(address) > 254:
        raise InvalidInput("must have at most 254 characters", field="email")
    if role not in Membership.Role.values:
        raise InvalidInput(f"must be one of {', '.join(Membership.Role.values)}", field="role")
    token = _new_token()
    with transaction.atomic():
        lock_organization(organization.pk)
        if not roles.may_change(actor=role_of(organization=organization, user=by), current="", wanted=role):
            raise NotAllowed("only owners invite owners, and only owners and admins invite", code="forbidden")
        if Membership.objects.filter(organization=organization, user__email=address).exists():
            raise Conflict("this person is a member already", code="already_member", field="email")
        if organization.memberships.count() + open_invites(organization=organization).count() >= MAX_MEMBERS:
            raise NotAllowed(f"an organization may have {MAX_MEMBERS} members", code="too_many_members")
        _spend_mail(organization)
        now = timezone.now()
        Invite.objects.filter(organization=organization, email=address, accepted_at=None, revoked_at=None).update(
            revoked_at=now
        )
        made = Invite.objects.create(
            organization=organization,
            email=address,
            role=role,
            digest=_digest(token),
            invited_by=by,
            sent_at=now,
            expires_at=now + LASTS,
        )
        audit.record(organization=organization, act="invite.made", subject=str(made.pk), data={"role": role})
        transaction.on_commit(lambda: _mail(made, token))
    return made


@transaction.atomic
def resend(*, organization: Organization, by: User, invite_id: UUID) -> Invite:
    """Mail a new link for another seven days; the old link ends. Raises NotFound, NotAllowed."""
    lock_organization(organization.pk)
    row = _open(organization, invite_id, including_expired=True)
    if not roles.may_change(actor=role_of(organization=organization, user=by), current="", wanted=row.role):
        raise NotAllowed("only owners invite owners, and only owners and admins invite")
    _spend_mail(organization)
    token, row.sent_at = _new_token(), timezone.now()
    row.digest, row.expires_at = _digest(token), row.sent_at + LASTS
    row.save(update_fields=["digest", "sent_at", "expires_at"])
    audit.record(organization=organization, act="invite.sent_again", subject=str(row.pk))
    transaction.on_commit(lambda: _mail(row, token))
    return row


@transaction.atomic
def revoke(*, organization: Organization, by: User, invite_id: UUID) -> None:
    """End an open invite: its link leads nowhere. Raises NotFound, NotAllowed."""
    lock_organization(organization.pk)
    row = _open(organization, invite_id, including_expired=True)
    if not roles.may_manage(role_of(organization=organization, user=by)):
        raise NotAllowed("only owners and admins manage invites")
    row.revoked_at = timezone.now()
    row.save(update_fields=["revoked_at"])
    audit.record(organization=organization, act="invite.revoked", subject=str(row.pk))


def find(*, token: str) -> Invite:
    """Return the open invite of a link, with its organization. Raises InviteGone."""
    gone = InviteGone("this invite was used, taken back or is older than seven days: ask for a new one")
    try:
        _SIGNER.unsign(token[:200])  # what we did not make never reaches the database
    except signing.BadSignature:
        raise gone from None
    row = Invite.objects.filter(digest=_digest(token), accepted_at=None, revoked_at=None).select_related(
        "organization", "invited_by"
    )
    found = row.first()
    if found is None or found.expires_at <= timezone.now():
        raise gone
    return found


@transaction.atomic
def accept(*, token: str, user: User) -> Membership:
    """Make `user` a member. Raises InviteGone, and WrongAddress for an account with another address."""
    organization = lock_organization(find(token=token).organization_id)
    row = find(token=token)  # again, under the lock: a link is used once
    if user.email.lower() != row.email and not _has_address(user, row.email):
        raise WrongAddress(f"this invite is for {row.email}; you are signed in as {user.email}")
    inviter = role_of(organization=organization, user=row.invited_by) if row.invited_by else None
    if not roles.may_change(actor=inviter, current="", wanted=row.role):
        raise InviteGone("whoever invited you may no longer do so: ask for a new invite")
    membership, is_new = Membership.objects.get_or_create(
        organization=organization, user=user, defaults={"role": row.role}
    )
    row.accepted_at = timezone.now()
    row.save(update_fields=["accepted_at"])
    for address in EmailAddress.objects.filter(user=user, email__iexact=row.email):
        address.verified = True
        address.save(update_fields=["verified"])
    if is_new:
        audit.record(
            organization=organization,
            actor=audit.Actor(user=user),
            act="member.joined",
            subject=str(user.pk),
            data={"role": row.role},
        )
    return membership


def open_invites(*, organization: Organization) -> QuerySet[Invite]:
    """Return the invites that can still be accepted, newest first."""
    return unanswered(organization=organization).filter(expires_at__gt=timezone.now())


def unanswered(*, organization: Organization) -> QuerySet[Invite]:
    """Return the open invites and those that expired unanswered, newest first."""
    rows = Invite.objects.filter(organization=organization, accepted_at=None, revoked_at=None)
    return rows.select_related("invited_by").order_by("-created_at", "-id")


def _open(organization: Organization, invite_id: UUID, *, including_expired: bool) -> Invite:
    rows = unanswered(organization=organization) if including_expired else open_invites(organization=organization)
    found = rows.filter(pk=invite_id).first()
    if found is None:
        raise NotFound("there is no such invite")
    return found


def _has_address(user: User, email: str) -> bool:
    return bool(list(EmailAddress.objects.filter(user=user, email__iexact=email)))  # loaded, which checks their seals


def _spend_mail(organization: Organization) -> None:
    day_ago = timezone.now() - timedelta(days=1)
    InviteMail.objects.filter(organization=organization, sent_at__lte=day_ago).delete()
    sent = InviteMail.objects.filter(organization=organization).count()
    if sent >= MAX_UNPAID_MAILS_A_DAY and not has_paid(organization):
        raise NotAllowed(
            f"an organization sends {MAX_UNPAID_MAILS_A_DAY} invites a day until its first top-up, then "
            f"{MAX_MAILS_A_DAY}; top up, or go on tomorrow",
            code="too_many_invites",
        )
    if sent >= MAX_MAILS_A_DAY:
        raise NotAllowed(f"an organization sends at most {MAX_MAILS_A_DAY} invites a day", code="too_many_invites")
    InviteMail.objects.create(organization=organization)


def _new_token() -> str:
    return _SIGNER.sign(secrets.token_urlsafe(32))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _mail(row: Invite, token: str) -> None:
    inviter = row.invited_by.email if row.invited_by else "Somebody"
    text = (
        f"{inviter} invites you to join {row.organization.name} on Intarsia, as {row.role}.\n\n"
        f"{settings.PUBLIC_URL}/invites/{token}\n\n"
        "The link is for this address alone and works for seven days. Without an answer from you nothing happens."
    )
    # The subject has the slug: a name could hold an address, which mail programs make a link of.
    send(EmailMessage(f"Join {row.organization.slug} on Intarsia", text, to=[row.email]))
