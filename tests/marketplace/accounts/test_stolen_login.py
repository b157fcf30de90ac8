"""Rows of people, roles, keys and sessions that a thief of the database login writes give nothing."""

from __future__ import annotations

import secrets
import uuid
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.idp.oidc.models import Token
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.sessions.models import Session
from django.test import Client

from marketplace.accounts import device_login, policies, second_factor
from marketplace.accounts.models import ApiKey, Membership, Organization, User
from marketplace.accounts.seals import SealBroken
from marketplace.accounts.services import rotate_api_key
from marketplace.accounts.session_store import SessionStore
from marketplace.teams import invites, members
from marketplace.teams.models import Invite, Transfer
from tests.marketplace import thief
from tests.marketplace.api.client import Api
from tests.marketplace.catalog.factories import PASSWORD, add_member, make_key, make_organization, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def victim() -> Organization:
    return make_organization("victim", make_user("owner@example.com"))


@pytest.fixture
def mine() -> Organization:
    return make_organization("mine", make_user("thief@example.com"))


def owner_of(organization: Organization) -> User:
    return organization.memberships.get(role="owner").user


def status(api: Api, path: str = "wallet", **headers: str) -> int:
    return int(api.get(path, **headers).status_code)


def signed_in(user: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


@pytest.mark.parametrize("column", ApiKey.SEALED)
def test_a_key_whose_row_was_changed_is_no_key(mine: Organization, victim: Organization, column: str) -> None:
    key, text = make_key(mine)
    assert status(Api(text)) == 200
    thief.change("accounts_apikey", "id = %s", key.pk, **{column: another(column, mine, victim)})
    if column == "id":
        return  # a key of another id: the row below
    assert status(Api(text)) == 401
    with pytest.raises(SealBroken):
        ApiKey.objects.get(pk=key.pk)


def another(column: str, mine: Organization, victim: Organization) -> Any:
    """Return another value for a column of a key."""
    return {
        "id": uuid.uuid4(),
        "organization_id": victim.pk,
        "prefix": "a" * 12,
        "digest": secrets.token_bytes(32),
        "scopes": ["predict", "publish", "account", "read"],
        "created_by_id": owner_of(victim).pk,
        "expires_at": "2999-01-01T00:00:00Z",
        "revoked_at": "2020-01-01T00:00:00Z",
        "first_key_id": make_key(mine)[0].pk,
        "guards": {"email": "mask"},
        "allowed_networks": ["0.0.0.0/0"],
        "allowed_models": ["victim/model"],
    }[column]


def test_a_key_row_that_the_platform_did_not_make_is_no_key(mine: Organization, victim: Organization) -> None:
    _, text = make_key(mine)
    other_id = uuid.uuid4()
    thief.run("DELETE FROM accounts_membership WHERE organization_id = %s", victim.pk)
    row = thief.run("SELECT prefix, digest, seal FROM accounts_apikey")[0]
    thief.run("DELETE FROM accounts_apikey")
    thief.run(
        "INSERT INTO accounts_apikey (id, organization_id, name, prefix, digest, scopes, created_at, seal)"
        " VALUES (%s, %s, 'x', %s, %s, '{account}', now(), %s)",
        *(other_id, victim.pk, *row),
    )
    assert status(Api(text)) == 401


def test_a_changed_key_cannot_be_made_good_by_changing_or_rotating_it(mine: Organization, victim: Organization) -> None:
    key, _ = make_key(mine)
    loaded = ApiKey.objects.get(pk=key.pk)
    thief.change("accounts_apikey", "id = %s", key.pk, organization_id=victim.pk)
    loaded.allowed_models = []
    with pytest.raises(SealBroken):
        loaded.save(update_fields=["allowed_models"])
    with pytest.raises(SealBroken):
        ApiKey.objects.filter(pk=key.pk).update(revoked_at=None)
    with pytest.raises(SealBroken):
        rotate_api_key(key=loaded, created_by=None)
    with pytest.raises(SealBroken):
        ApiKey.objects.get(pk=key.pk)


def test_a_membership_that_the_platform_did_not_make_gives_no_role(mine: Organization, victim: Organization) -> None:
    person = owner_of(mine)
    thief.copy("accounts_membership", "user_id = %s", person.pk, organization_id=str(victim.pk))
    assert status(of_client(signed_in(person)), "wallet", **{"X-Organization": "victim"}) == 403
    with pytest.raises(SealBroken):
        members.role_of(organization=victim, user=person)
    assert signed_in(person).get("/dashboard/").status_code in (403, 404)


def of_client(client: Client) -> Api:
    api = Api()
    api.client = client
    return api


def test_a_role_that_was_changed_is_none(victim: Organization) -> None:
    person = add_member(victim, "viewer")
    assert status(of_client(signed_in(person)), "organizations/victim") == 200
    thief.change("accounts_membership", "user_id = %s", person.pk, role="owner")
    assert status(of_client(signed_in(person)), "organizations/victim") == 403
    owner = User.objects.get(email="owner@example.com")
    with pytest.raises(SealBroken):
        members.change_role(organization=victim, by=person, user=owner, role="viewer")
    assert Membership.objects.get(user=owner).role == "owner"


@pytest.mark.parametrize("flag", ["is_staff", "is_superuser"])
def test_a_flag_of_staff_that_was_set_past_the_platform_ends_the_account(mine: Organization, flag: str) -> None:
    person = owner_of(mine)
    client = signed_in(person)
    assert status(of_client(client), "me") == 200
    thief.change("accounts_user", "id = %s", person.pk, **{flag: True})
    assert status(of_client(client), "me") == 401
    assert client.get("/dashboard/security").status_code == 302, "it is nobody's session: no factor can be enrolled"
    assert not Client().login(email=person.email, password=PASSWORD)


def test_a_password_that_was_written_past_the_platform_opens_nothing(victim: Organization) -> None:
    person = owner_of(victim)
    thief.change("accounts_user", "id = %s", person.pk, password=make_password("known to the thief"))
    assert not Client().login(email=person.email, password="known to the thief")


def test_staff_whose_factor_was_not_enrolled_through_the_platform_are_no_operators() -> None:
    staff, other = make_user("staff@example.com", is_staff=True), make_user("b@example.com", is_staff=True)
    assert policies.is_operator(user=staff, key_organization_slug=None)
    mine = Authenticator.objects.get(user=other)
    thief.change("mfa_authenticator", "user_id = %s", staff.pk, data={"secret": mine.data["secret"]})
    with pytest.raises(SealBroken):
        policies.is_operator(user=staff, key_organization_slug=None)
    with pytest.raises(SealBroken):
        second_factor.has_second_factor(user=staff, code="000000")


def test_a_factor_cannot_be_moved_to_another_person_with_its_seal() -> None:
    person, victim = make_user("a@example.com", is_staff=True), make_user("v@example.com")
    row = Authenticator.objects.get(user=person)
    thief.change("mfa_authenticator", "id = %s", row.pk, user_id=victim.pk)
    with pytest.raises(SealBroken):
        second_factor.is_enrolled(user=victim)
    thief.run(
        "INSERT INTO mfa_authenticator (user_id, type, data, created_at) VALUES (%s, 'webauthn', '{}', now())",
        person.pk,
    )
    with pytest.raises(SealBroken):
        second_factor.is_enrolled(user=person)


def test_an_address_that_was_added_past_the_platform_resets_no_password(victim: Organization, mailoutbox: Any) -> None:
    thief.run(
        'INSERT INTO account_emailaddress (user_id, email, verified, "primary") VALUES (%s, %s, true, false)',
        *(owner_of(victim).pk, "thief@evil.example"),
    )
    Client(raise_request_exception=False).post("/accounts/password/reset/", {"email": "thief@evil.example"})
    assert not [mail for mail in mailoutbox if "/password/reset/key" in mail.body]
    with pytest.raises(SealBroken):
        EmailAddress.objects.get(email="thief@evil.example")


def test_the_rows_of_sessions_hold_no_key_that_opens_one(victim: Organization) -> None:
    client = signed_in(owner_of(victim))
    cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
    assert client.get("/dashboard/security").status_code == 200
    stored = [
        row[0]
        for table in ("django_session", "usersessions_usersession")
        for row in thief.run(f"SELECT session_key FROM {table}")
    ]
    assert stored and cookie not in stored and len(set(stored)) == 1
    stranger = Client()
    stranger.cookies[settings.SESSION_COOKIE_NAME] = stored[0]
    assert stranger.get("/dashboard/security").status_code == 302
    assert UserSession.objects.get().session_key == cookie, "the person's own list knows which one is at hand"


def test_a_session_cannot_be_moved_into_another_row(mine: Organization, victim: Organization) -> None:
    theirs, own = signed_in(owner_of(victim)), signed_in(owner_of(mine))
    keys = {name: client.cookies[settings.SESSION_COOKIE_NAME].value for name, client in (("v", theirs), ("m", own))}
    data = Session.objects.get(session_key=keys["v"]).session_data
    thief.change("django_session", "session_data <> %s", data, session_data=data)
    assert own.get("/dashboard/security").status_code == 302
    assert not SessionStore(keys["m"]).load()
    assert theirs.get("/dashboard/security").status_code == 200


def test_an_invite_or_an_offer_that_the_platform_did_not_make_leads_nowhere(
    mine: Organization, victim: Organization
) -> None:
    person = owner_of(mine)
    invites.invite(organization=mine, by=person, email="thief@example.com.invalid", role="admin")
    thief.change("teams_invite", "true", organization_id=victim.pk, role="owner", email=person.email)
    with pytest.raises(SealBroken):
        Invite.objects.get()
    add_member(victim, "viewer")
    thief.run(
        "INSERT INTO teams_transfer (organization_id, offered_by_id, offered_to_id, created_at, expires_at, seal)"
        " VALUES (%s, %s, %s, now(), now() + interval '1 day', '')",
        *(victim.pk, owner_of(victim).pk, person.pk),
    )
    with pytest.raises(SealBroken):
        members.accept_ownership(organization=victim, user=person)
    assert not Membership.objects.filter(organization=victim, user=person).exists()
    assert Transfer.objects.count() == 1


def test_a_device_token_that_the_platform_did_not_make_buys_no_key(victim: Organization) -> None:
    device_login.ensure_client()
    token = Token(type=Token.Type.ACCESS_TOKEN)
    token.set_value("known-to-the-thief")
    grant = {"organization": str(victim.pk), "name": "x", "days": 1}
    thief.run(
        "INSERT INTO allauth_idp_oidc_token (type, hash, client_id, user_id, data, created_at, expires_at, scopes)"
        " VALUES ('at', %s, %s, %s, %s, now(), now() + interval '1 hour', 'account')",
        *(token.hash, device_login.CLIENT_ID, owner_of(victim).pk, thief.Jsonb(grant)),
    )
    before = ApiKey.objects.count()
    with pytest.raises(SealBroken):
        device_login.trade("known-to-the-thief")
    assert ApiKey.objects.count() == before
