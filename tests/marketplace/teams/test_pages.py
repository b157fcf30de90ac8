"""The pages of an organization, as its members walk them."""

from __future__ import annotations

import io

import pytest
from django.core import mail
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from PIL import Image

from marketplace.accounts import audit
from marketplace.accounts.models import Organization, User
from marketplace.teams.members import role_of
from marketplace.teams.models import Invite
from tests.marketplace.catalog.factories import add_member, make_key
from tests.marketplace.teams.fresh import freshen

pytestmark = pytest.mark.django_db


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return freshen(client)


def test_a_person_creates_an_organization_and_acts_for_it(owner: User) -> None:
    client = signed_in(owner)
    refused = client.post("/dashboard/organization/new", {"slug": "acme", "name": "Again"})
    assert refused.status_code == 422 and "is taken" in refused.content.decode()
    page = client.post("/dashboard/organization/new", {"slug": "second", "name": "Second"}, follow=True)
    assert "Second is there" in page.content.decode() and Organization.objects.get(slug="second")


def test_an_owner_names_pictures_and_renames(acme: Organization, owner: User) -> None:
    client, target = signed_in(owner), io.BytesIO()
    Image.new("RGB", (30, 30), "blue").save(target, "PNG")
    upload = SimpleUploadedFile("logo.png", target.getvalue(), "image/png")
    page = client.post("/dashboard/organization/logo", {"logo-logo": upload}, follow=True).content.decode()
    assert "Logo of Acme" in page
    page = client.post("/dashboard/organization/name", {"name-name": "Acme Models"}, follow=True).content.decode()
    assert "Acme Models" in page
    page = client.post("/dashboard/organization/rename", {"rename-slug": "acme-two"}, follow=True).content.decode()
    assert "acme leads to it for two years" in page and "leads here until" in page
    bad = client.post("/dashboard/organization/rename", {"rename-slug": "admin"})
    assert bad.status_code == 422 and "is reserved" in bad.content.decode()
    wrong = SimpleUploadedFile("logo.svg", b"<svg/>", "image/svg+xml")
    assert client.post("/dashboard/organization/logo", {"logo-logo": wrong}).status_code == 422


def test_an_admin_invites_changes_and_removes(acme: Organization, django_capture_on_commit_callbacks) -> None:
    admin, developer = add_member(acme, "admin"), add_member(acme, "developer")
    key, _ = make_key(acme)
    key.created_by = developer
    key.save()
    client = signed_in(admin)
    with django_capture_on_commit_callbacks(execute=True):
        client.post("/dashboard/members/invite", {"email": "new@example.com", "role": "viewer"})
    assert mail.outbox[-1].to == ["new@example.com"]
    page = client.get("/dashboard/members").content.decode()
    assert "new@example.com" in page and '<option value="owner"' not in page
    assert client.post("/dashboard/members/invite", {"email": "x@example.com", "role": "owner"}).status_code == 422
    client.post(f"/dashboard/members/invites/{Invite.objects.get().pk}/revoke")
    assert "new@example.com" not in client.get("/dashboard/members").content.decode()
    page = client.post(f"/dashboard/members/{developer.pk}/role", {"role": "owner"}, follow=True).content.decode()
    assert "Only owners make and unmake owners" in page and role_of(organization=acme, user=developer) == "developer"
    page = client.post(f"/dashboard/members/{developer.pk}/remove", follow=True).content.decode()
    assert "is no member any more" in page and f"Keys made by {developer.email}" in page and key.prefix in page


def test_a_viewer_sees_members_and_no_forms(acme: Organization) -> None:
    client = signed_in(add_member(acme, "viewer"))
    page = client.get("/dashboard/members").content.decode()
    assert "Invite" not in page.split("<main")[1].split("Roles")[0] and "<select name" not in page
    assert "Show this picture" not in client.get("/dashboard/organization/settings").content.decode()
    for path in ("/dashboard/usage", "/dashboard/budgets", "/dashboard/models"):
        assert '<form method="post"' not in client.get(path).content.decode().split("<h1>")[1], path
    assert client.post("/dashboard/organization/leave").status_code == 302
    assert acme.memberships.count() == 1


def test_roles_change_only_after_the_password(acme: Organization, owner: User) -> None:
    developer, client = add_member(acme, "developer"), Client()
    client.force_login(owner)
    session = client.session
    session["signed_in_at"] = 0
    session.save()
    response = client.post(f"/dashboard/members/{developer.pk}/role", {"role": "owner"})
    assert response.status_code == 302 and "/accounts/reauthenticate/" in response["Location"]
    assert role_of(organization=acme, user=developer) == "developer"


def test_the_log_is_filtered_paged_and_downloaded(acme: Organization, owner: User) -> None:
    client = signed_in(owner)
    client.post("/dashboard/organization/name", {"name-name": "Acme Models"})
    for number in range(60):
        audit.record(organization=acme, actor=audit.PLATFORM, act="key.expired", subject=f"key-{number}")
    page = client.get("/dashboard/audit?act=key").content.decode()
    assert "Page 1 of 2" in page and "key-59" in page and "name_changed" not in page
    mine = client.get(f"/dashboard/audit?person={owner.pk}").content.decode()
    assert "organization.name_changed" in mine and owner.email in mine and "key-59" not in mine
    assert client.get("/dashboard/audit?since=x&person=me&page=x").status_code == 200
    text = client.get("/dashboard/audit.csv?act=organization").content.decode()
    assert "organization.name_changed" in text and "key.expired" not in text
