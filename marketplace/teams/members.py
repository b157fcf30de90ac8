"""Writes about members: roles, removal, leaving, and the transfer of ownership.

A removed member's keys stay: they are the organization's. The page names them and offers to revoke them.
"""

from __future__ import annotations

from datetime import timedelta

from django.core.mail import EmailMessage
from django.db import transaction
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed, NotFound
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Membership, Organization, User
from marketplace.teams import roles
from marketplace.teams.errors import LastOwner
from marketplace.teams.mails import send
from marketplace.teams.models import Transfer

OFFER_LASTS = timedelta(days=7)
Role = Membership.Role


@transaction.atomic
def change_role(*, organization: Organization, by: User, user: User, role: str) -> Membership:
    """Give a member another role. Raises InvalidInput, NotFound, NotAllowed, LastOwner."""
    if role not in Role.values:
        raise InvalidInput(f"must be one of {', '.join(Role.values)}", field="role")
    lock_organization(organization.pk)  # owners are counted one change at a time
    membership = member(organization=organization, user=user)
    before = membership.role
    if before == role:
        return membership
    _require_change(organization, by=by, current=before, wanted=role)
    if before == Role.OWNER:
        _require_another_owner(organization, user)
    membership.role = role
    membership.save(update_fields=["role"])
    _void_transfers(organization, user)
    audit.record(
        organization=organization, act="member.role_changed", subject=str(user.pk), data={"from": before, "to": role}
    )
    return membership


@transaction.atomic
def remove(*, organization: Organization, by: User, user: User) -> None:
    """Take a member out: pages and playground close at once. Raises NotFound, NotAllowed, LastOwner."""
    if by.pk == user.pk:
        leave(organization=organization, user=user)
        return
    lock_organization(organization.pk)
    membership = member(organization=organization, user=user)
    _require_change(organization, by=by, current=membership.role, wanted=None)
    _take_out(membership, "member.removed")


@transaction.atomic
def leave(*, organization: Organization, user: User) -> None:
    """Let a member go by themselves. Raises NotFound, LastOwner."""
    lock_organization(organization.pk)
    _take_out(member(organization=organization, user=user), "member.left")


@transaction.atomic
def offer_ownership(*, organization: Organization, by: User, user: User) -> Transfer:
    """Offer a member that they become owner and the one who offers an admin; a newer offer replaces the older.

    Raises NotAllowed unless an owner offers, NotFound for no member, Conflict for one who is owner already.
    """
    lock_organization(organization.pk)
    if role_of(organization=organization, user=by) != Role.OWNER:
        raise NotAllowed("only an owner can hand the ownership over")
    if member(organization=organization, user=user).role == Role.OWNER:
        raise Conflict("this member is an owner already")
    Transfer.objects.filter(organization=organization).delete()
    transfer = Transfer.objects.create(
        organization=organization, offered_by=by, offered_to=user, expires_at=timezone.now() + OFFER_LASTS
    )
    audit.record(organization=organization, act="ownership.offered", subject=str(user.pk))
    text = (
        f"{by.email} offers you the ownership of {organization.name} on Intarsia. You would be an owner, they an admin."
        "\n"
        "The offer stands for seven days. Accept or decline it under Members."
    )
    transaction.on_commit(lambda: send(EmailMessage(f"The ownership of {organization.slug}", text, to=[user.email])))
    return transfer


@transaction.atomic
def accept_ownership(*, organization: Organization, user: User) -> None:
    """Make the one to whom the ownership was offered an owner, and the one who offered it an admin.

    Raises NotFound for no offer to this user, Conflict if the one who offered it is no owner any more.
    """
    lock_organization(organization.pk)
    transfer = open_transfer(organization=organization)
    if transfer is None or transfer.offered_to_id != user.pk:
        raise NotFound("there is no offer of ownership to you")
    former = Membership.objects.filter(organization=organization, user=transfer.offered_by_id, role=Role.OWNER).first()
    if former is None:
        raise Conflict("whoever offered the ownership is no owner any more")
    Membership.objects.filter(organization=organization, user=user).update(role=Role.OWNER)
    former.role = Role.ADMIN
    former.save(update_fields=["role"])
    transfer.delete()
    audit.record(organization=organization, act="ownership.accepted", subject=str(former.user_id))


@transaction.atomic
def end_transfer(*, organization: Organization, user: User) -> None:
    """Take an offer back, or decline it. Raises NotFound, and NotAllowed for whom it does not concern."""
    lock_organization(organization.pk)
    transfer = open_transfer(organization=organization)
    if transfer is None:
        raise NotFound("there is no open offer of ownership")
    if transfer.offered_to_id != user.pk and role_of(organization=organization, user=user) != Role.OWNER:
        raise NotAllowed("only an owner takes the offer back, and only the one it is made to declines it")
    transfer.delete()
    audit.record(organization=organization, act="ownership.offer_ended", subject=str(transfer.offered_to_id))


def open_transfer(*, organization: Organization) -> Transfer | None:
    """Return the open offer of ownership, or None."""
    offers = Transfer.objects.filter(organization=organization, expires_at__gt=timezone.now())
    return offers.select_related("offered_by", "offered_to").first()


def member(*, organization: Organization, user: User) -> Membership:
    """Return the membership of a user. Raises NotFound."""
    found = Membership.objects.filter(organization=organization, user=user).select_related("user").first()
    if found is None:
        raise NotFound("there is no such member")
    return found


def role_of(*, organization: Organization, user: User) -> str | None:
    """Return the role of a user in the organization, or None."""
    found = Membership.objects.filter(organization=organization, user=user).first()
    return None if found is None else found.role


def _take_out(membership: Membership, act: str) -> None:
    if membership.role == Role.OWNER:
        _require_another_owner(membership.organization, membership.user)
    _void_transfers(membership.organization, membership.user)
    membership.delete()
    audit.record(
        organization=membership.organization,
        act=act,
        subject=str(membership.user_id),
        data={"role": membership.role},
    )


def _require_change(organization: Organization, *, by: User, current: str, wanted: str | None) -> None:
    actor = role_of(organization=organization, user=by)
    if not roles.may_change(actor=actor, current=current, wanted=wanted):
        raise NotAllowed(
            "only owners make and unmake owners" if roles.may_manage(actor) else "only owners and admins manage members"
        )


def _require_another_owner(organization: Organization, user: User) -> None:
    others = Membership.objects.filter(organization=organization, role=Role.OWNER).exclude(user=user)
    if not others.exists():
        raise LastOwner("the last owner cannot leave or lose the role: make somebody else owner first")


def _void_transfers(organization: Organization, user: User) -> None:
    """End offers that name a member whose role changes: they were made for how it was."""
    Transfer.objects.filter(organization=organization, offered_by=user).delete()
    Transfer.objects.filter(organization=organization, offered_to=user).delete()
