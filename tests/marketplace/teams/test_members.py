"""Roles, removal, leaving and the transfer of ownership; each act is in the audit log."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import mail

from marketplace.accounts.errors import Conflict, NotAllowed, NotFound, Refusal
from marketplace.accounts.models import AuditEntry, Membership, Organization, User
from marketplace.teams import members
from marketplace.teams.errors import LastOwner
from tests.marketplace.catalog.factories import add_member, make_key, make_user

pytestmark = pytest.mark.django_db


def role_of(acme: Organization, user: User) -> str | None:
    return members.role_of(organization=acme, user=user)


def acts() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("act", flat=True))


def test_owners_and_admins_change_roles_and_only_owners_make_owners(acme: Organization, owner: User) -> None:
    admin, developer, billing = (add_member(acme, role) for role in ("admin", "developer", "billing"))
    members.change_role(organization=acme, by=admin, user=developer, role="viewer")
    assert role_of(acme, developer) == "viewer"
    refused: list[dict[str, Any]] = [
        {"by": admin, "user": developer, "role": "owner"},
        {"by": admin, "user": owner, "role": "viewer"},
        {"by": billing, "user": developer, "role": "admin"},
        {"by": developer, "user": developer, "role": "admin"},
        {"by": make_user(), "user": developer, "role": "admin"},
        {"by": owner, "user": developer, "role": "king"},
        {"by": owner, "user": make_user(), "role": "admin"},
    ]
    before = sorted(acme.memberships.values_list("user_id", "role"))
    for change in refused:
        with pytest.raises(Refusal):
            members.change_role(organization=acme, **change)
    assert sorted(acme.memberships.values_list("user_id", "role")) == before
    members.change_role(organization=acme, by=owner, user=admin, role="owner")
    assert acts()[-2:] == ["member.role_changed"] * 2


def test_the_last_owner_stays(acme: Organization, owner: User) -> None:
    admin = add_member(acme, "admin")
    with pytest.raises(LastOwner):
        members.leave(organization=acme, user=owner)
    with pytest.raises(LastOwner):
        members.change_role(organization=acme, by=owner, user=owner, role="admin")
    with pytest.raises(NotAllowed):
        members.remove(organization=acme, by=admin, user=owner)
    members.change_role(organization=acme, by=owner, user=admin, role="owner")
    members.leave(organization=acme, user=owner)
    assert (role_of(acme, owner), role_of(acme, admin)) == (None, "owner")


def test_a_removed_members_keys_stay(acme: Organization, owner: User) -> None:
    key, _ = make_key(acme)
    admin = add_member(acme, "admin")
    key.created_by = admin
    key.save()
    members.remove(organization=acme, by=owner, user=admin)
    key.refresh_from_db()
    assert role_of(acme, admin) is None and key.revoked_at is None and key.created_by == admin
    assert acts()[-1] == "member.removed"


def test_ownership_is_offered_and_accepted(acme: Organization, owner: User, django_capture_on_commit_callbacks) -> None:
    admin, other = add_member(acme, "admin"), add_member(acme, "viewer")
    with django_capture_on_commit_callbacks(execute=True):
        members.offer_ownership(organization=acme, by=owner, user=admin)
    assert mail.outbox[0].to == [admin.email] and "ownership of acme" in mail.outbox[0].subject
    with pytest.raises(NotFound):
        members.accept_ownership(organization=acme, user=other)
    with pytest.raises(NotAllowed):
        members.end_transfer(organization=acme, user=other)
    members.accept_ownership(organization=acme, user=admin)
    assert (role_of(acme, admin), role_of(acme, owner)) == ("owner", "admin")
    with pytest.raises(NotFound):
        members.accept_ownership(organization=acme, user=admin)
    with pytest.raises(NotAllowed):
        members.offer_ownership(organization=acme, by=owner, user=other)
    assert acts()[-2:] == ["ownership.offered", "ownership.accepted"]


def test_an_offer_ends_with_the_role_that_it_was_made_for(acme: Organization, owner: User) -> None:
    admin, second = add_member(acme, "admin"), add_member(acme, Membership.Role.OWNER)
    with pytest.raises(Conflict):
        members.offer_ownership(organization=acme, by=owner, user=second)
    members.offer_ownership(organization=acme, by=owner, user=admin)
    members.change_role(organization=acme, by=second, user=owner, role="viewer")
    with pytest.raises(NotFound):
        members.accept_ownership(organization=acme, user=admin)
    members.offer_ownership(organization=acme, by=second, user=admin)
    members.end_transfer(organization=acme, user=admin)
    assert members.open_transfer(organization=acme) is None and role_of(acme, admin) == "admin"
