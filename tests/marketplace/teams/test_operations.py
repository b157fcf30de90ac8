"""The API about people and names: sessions of those who may, keys that only read, one envelope for refusals."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.test import Client
from PIL import Image

from marketplace.accounts.models import Membership, Organization, User
from marketplace.teams.models import Invite
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import add_member

pytestmark = pytest.mark.django_db


def session(user: User) -> Any:
    """A signed-in caller: `call(method, path, body)`."""
    api = Api()
    api.client = Client(raise_request_exception=False)
    api.client.force_login(user)
    return api.call


def test_an_owner_manages_people(acme: Organization, owner: User) -> None:
    call, developer = session(owner), add_member(acme, "developer")
    listed = call("GET", "organizations/acme/members").json()["results"]
    assert [(one["email"], one["role"]) for one in listed] == [(owner.email, "owner"), (developer.email, "developer")]
    path = f"organizations/acme/members/{developer.pk}"
    assert call("PATCH", path, {"role": "viewer"}).json()["role"] == "viewer"
    invited = call("POST", "organizations/acme/invites", {"email": "new@example.com", "role": "viewer"})
    assert invited.status_code == 201 and "token" not in invited.json()
    (waiting,) = call("GET", "organizations/acme/invites").json()["results"]
    assert call("POST", f"organizations/acme/invites/{waiting['id']}/resend").status_code == 200
    assert call("DELETE", f"organizations/acme/invites/{waiting['id']}").status_code == 204
    assert Invite.objects.get().revoked_at is not None
    assert call("POST", "organizations/acme/transfer", {"user_id": str(developer.pk)}).status_code == 201
    assert session(developer)("POST", "organizations/acme/transfer/accept").status_code == 200
    assert error_of(call("DELETE", path), 403)["code"] == "forbidden"  # an admin now, who cannot remove an owner
    assert call("POST", "organizations/acme/leave").status_code == 204
    assert error_of(session(developer)("POST", "organizations/acme/leave"), 409)["code"] == "last_owner"
    assert error_of(session(developer)("POST", "invites/accept", {"token": "made-up"}), 404)["code"] == "invite_gone"


def test_an_owner_changes_names_and_logo(acme: Organization, owner: User) -> None:
    call, target = session(owner), io.BytesIO()
    changed = call("PATCH", "organizations/acme", {"slug": "acme-two", "name": "Acme Two"}).json()
    assert (changed["slug"], changed["name"], changed["former_slugs"]) == ("acme-two", "Acme Two", ["acme"])
    Image.new("RGB", (9, 9)).save(target, "PNG")
    client = Client()
    client.force_login(owner)
    path = "/api/v1/organizations/acme-two/logo"
    shown = client.put(path, data=target.getvalue(), content_type="application/octet-stream")
    assert shown.json()["logo_url"].endswith(".webp")
    error_of(client.put(path, data=b"x", content_type="application/octet-stream"), 400)
    error_of(client.put(path, data=bytes(2**20 + 1), content_type="application/octet-stream"), 413)
    assert call("DELETE", "organizations/acme-two/logo").status_code == 204
    assert call("GET", "organizations/acme").json()["logo_url"] is None  # by the former name


def test_a_key_reads_members_and_manages_nobody(acme: Organization, owner: User) -> None:
    api, reader, viewer = Api.of(acme), Api.of(acme, "read"), add_member(acme, "viewer")
    assert len(api.get("organizations/acme/members").json()["results"]) == 2
    assert error_of(reader.get("organizations/acme/members"), 403)["code"] == "scope_missing"
    refused = [
        ("PATCH", f"organizations/acme/members/{viewer.pk}", {"role": "admin"}),
        ("DELETE", f"organizations/acme/members/{viewer.pk}", None),
        ("POST", "organizations/acme/invites", {"email": "a@example.com", "role": "viewer"}),
        ("PATCH", "organizations/acme", {"name": "Mine"}),
        ("POST", "organizations/acme/leave", None),
        ("DELETE", "organizations/acme/logo", None),
        ("POST", "organizations/acme/transfer", {"user_id": str(viewer.pk)}),
    ]
    for method, path, body in refused:
        assert error_of(api.call(method, path, body), 403)["code"] == "session_required", path
    assert set(acme.memberships.values_list("role", flat=True)) == {"owner", "viewer"}
    assert not Invite.objects.exists() and Membership.objects.count() == 2
