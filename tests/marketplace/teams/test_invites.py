"""Invites by mail: a link works once, for its address, for seven days, and nobody gives away more than they have."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine
from allauth.account.models import EmailAddress
from django.core import mail
from django.test import Client
from django.utils import timezone

from marketplace.accounts.errors import Conflict, NotAllowed, NotFound, Refusal
from marketplace.accounts.models import AuditEntry, Membership, Organization, User
from marketplace.teams import invites, members
from marketplace.teams.errors import InviteGone, WrongAddress
from marketplace.teams.models import Invite
from tests.marketplace.catalog.factories import PASSWORD, add_member, make_organization, make_user

pytestmark = pytest.mark.django_db
ADDRESS = "guest@example.com"


@pytest.fixture
def mailed(django_capture_on_commit_callbacks):
    """Call and return the token of the link in the mail that it sends."""

    def call(act, **arguments) -> str:
        mail.outbox.clear()
        with django_capture_on_commit_callbacks(execute=True):
            act(**arguments)
        (sent,) = mail.outbox
        found = re.search(r"/invites/(\S+)", str(sent.body))
        assert found is not None and sent.to == [ADDRESS]
        return found[1]

    return call


def test_the_link_lets_its_address_in_once(acme: Organization, owner: User, mailed) -> None:
    token = mailed(invites.invite, organization=acme, by=owner, email=" Guest@Example.com ", role="developer")
    row = Invite.objects.get()
    assert row.email == ADDRESS and token not in str(row.__dict__)
    with pytest.raises(WrongAddress):
        invites.accept(token=token, user=make_user("other@example.com"))
    guest = make_user(ADDRESS)
    EmailAddress.objects.update_or_create(user=guest, email=ADDRESS, defaults={"verified": False, "primary": True})
    assert invites.accept(token=token, user=guest).role == "developer"
    assert EmailAddress.objects.get(user=guest).verified, "the link was mailed there"
    for wrong in (token, token[:-1] + ("a" if token[-1] != "a" else "b"), "made-up", "", "\x00", "é" * 500):
        with pytest.raises(InviteGone):
            invites.accept(token=wrong, user=guest)
    entry = AuditEntry.objects.latest("id")
    assert (entry.act, entry.user_id) == ("member.joined", guest.pk) and ADDRESS not in str(entry.__dict__)


def test_a_link_ends_after_a_week_when_it_is_taken_back_and_when_it_is_sent_again(acme, owner, mailed) -> None:
    first = mailed(invites.invite, organization=acme, by=owner, email=ADDRESS, role="viewer")
    row = Invite.objects.get()
    again = mailed(invites.resend, organization=acme, by=owner, invite_id=row.pk)
    with pytest.raises(InviteGone):
        invites.find(token=first)
    with time_machine.travel(timezone.now() + timedelta(days=7, seconds=1)), pytest.raises(InviteGone):
        invites.find(token=again)
    other = mailed(invites.invite, organization=acme, by=owner, email=ADDRESS, role="admin")
    with pytest.raises(InviteGone):
        invites.find(token=again)  # replaced
    invites.revoke(organization=acme, by=owner, invite_id=invites.find(token=other).pk)
    with pytest.raises(InviteGone):
        invites.find(token=other)
    with pytest.raises(NotFound):
        invites.resend(organization=acme, by=owner, invite_id=row.pk)


def test_nobody_invites_above_themselves_and_an_inviters_fall_ends_their_invites(acme, owner, mailed) -> None:
    admin = add_member(acme, "admin")
    for by, role in ((admin, "owner"), (add_member(acme, "billing"), "viewer"), (make_user(), "viewer")):
        with pytest.raises(NotAllowed):
            invites.invite(organization=acme, by=by, email=ADDRESS, role=role)
    with pytest.raises(Conflict):
        invites.invite(organization=acme, by=owner, email=admin.email, role="viewer")
    assert not Invite.objects.exists()
    token = mailed(invites.invite, organization=acme, by=admin, email=ADDRESS, role="admin")
    members.change_role(organization=acme, by=owner, user=admin, role="viewer")
    with pytest.raises(InviteGone):
        invites.accept(token=token, user=make_user(ADDRESS))


def test_an_organization_sends_so_many_a_day(acme, owner, monkeypatch) -> None:
    monkeypatch.setattr(invites, "MAX_MAILS_A_DAY", 2)
    for number in range(2):
        invites.invite(organization=acme, by=owner, email=f"{number}@example.com", role="viewer")
    with pytest.raises(NotAllowed) as refused:
        invites.resend(organization=acme, by=owner, invite_id=Invite.objects.latest("created_at").pk)
    assert refused.value.code == "too_many_invites"
    with time_machine.travel(timezone.now() + timedelta(days=1, seconds=1)):
        invites.resend(organization=acme, by=owner, invite_id=Invite.objects.latest("created_at").pk)


def test_a_new_person_signs_up_through_the_link_and_is_in_that_organization_alone(acme, owner, mailed) -> None:
    token = mailed(invites.invite, organization=acme, by=owner, email=ADDRESS, role="developer")
    client = Client()
    page = client.get(f"/invites/{token}").content.decode()
    assert "Join Acme" in page and ADDRESS in page
    assert "you join that organization" in client.get("/accounts/signup/").content.decode()
    client.post("/accounts/signup/", {"email": ADDRESS, "password1": PASSWORD})
    guest = User.objects.get(email=ADDRESS)
    assert [(one.organization, one.role) for one in guest.memberships.all()] == [(acme, "developer")]
    assert EmailAddress.objects.get(user=guest).verified
    assert client.get(f"/invites/{token}").status_code == 404


def test_somebody_who_signs_up_with_another_address_gets_their_own_organization(acme, owner, mailed) -> None:
    token = mailed(invites.invite, organization=acme, by=owner, email=ADDRESS, role="developer")
    client = Client()
    client.get(f"/invites/{token}")
    client.post("/accounts/signup/", {"email": "other@example.com", "password1": PASSWORD})
    other = User.objects.get(email="other@example.com")
    assert other.memberships.get().organization.slug == "other"
    assert not EmailAddress.objects.get(user=other).verified
    response = client.post(f"/invites/{token}")
    assert response.status_code == 403 and "Sign out" in response.content.decode()
    assert not Membership.objects.filter(organization=acme, user=other).exists()


def test_a_person_who_is_signed_in_joins_and_acts_for_the_organization(acme, owner, mailed) -> None:
    token = mailed(invites.invite, organization=acme, by=owner, email=ADDRESS, role="developer")
    client, guest = Client(), make_user(ADDRESS)
    make_organization("own", guest)
    client.force_login(guest)
    assert Membership.objects.filter(user=guest).count() == 1  # reading the page joins nothing
    assert client.get(f"/invites/{token}").status_code == 200
    assert client.post(f"/invites/{token}").status_code == 302
    assert "acme" in client.get("/dashboard/").content.decode()


def test_refusals_name_the_field(acme, owner) -> None:
    for wrong, field in (
        ({"email": "nobody", "role": "viewer"}, "email"),
        ({"email": ADDRESS, "role": "king"}, "role"),
        ({"email": "a" * 250 + "@example.com", "role": "viewer"}, "email"),
    ):
        with pytest.raises(Refusal) as refused:
            invites.invite(organization=acme, by=owner, **wrong)
        assert refused.value.field == field
