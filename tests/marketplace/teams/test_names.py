"""Names and logo: a former name leads to the organization, and to nobody else, everywhere a name is read."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.utils import timezone
from PIL import Image

from marketplace.accounts import selectors as accounts
from marketplace.accounts import services
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed, TooLarge
from marketplace.accounts.models import FormerName, Organization
from marketplace.catalog import selectors as catalog
from marketplace.privacy.services import erase_organization
from marketplace.teams import organizations, pictures
from tests.marketplace.api.client import Api
from tests.marketplace.catalog.factories import add_member, make_model, make_organization, make_user, make_version

pytestmark = pytest.mark.django_db


def picture(kind: str = "PNG", size: tuple[int, int] = (400, 200)) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", size, "red").save(target, kind)
    return target.getvalue()


def test_a_former_name_leads_to_the_organization_everywhere(acme, owner) -> None:
    make_version(make_model(acme))
    old_client = Client()
    old_client.force_login(owner)
    old_client.post("/dashboard/organization", {"organization": "acme"})
    organizations.rename(organization=acme, by=owner, slug="acme-two")
    api = Api.of(acme, "publish", "account")
    shown = api.get("models/acme/triage").json()
    assert shown["name"] == "acme-two/triage"
    assert api.call("PATCH", "models/acme/triage", {"summary": "Renamed"}).status_code == 200
    assert Api().get("models/acme/triage").status_code == 200
    assert api.get("wallet", **{"X-Organization": "acme"}).status_code == 200
    assert Client().get("/models/acme/triage")["Location"] == "/models/acme-two/triage"
    assert catalog.published_version(org_slug="acme", slug="triage", number=1) is not None
    assert accounts.organization_named("acme") == acme
    assert old_client.get("/dashboard/models/triage").status_code == 200  # the session still names acme
    assert Client().get("/models/nobody/triage").status_code == 404


def test_a_former_name_is_kept_from_others_and_given_back(acme, owner) -> None:
    organizations.rename(organization=acme, by=owner, slug="acme-two")
    other = make_organization("other")
    with pytest.raises(Conflict) as refused:
        services.create_organization(owner=make_user(), slug="acme", name="Fake")
    assert refused.value.code == "slug_taken"
    with pytest.raises(Conflict):
        organizations.rename(organization=other, by=other.memberships.get().user, slug="acme")
    assert Organization.objects.filter(slug="acme").count() == 0
    organizations.rename(organization=acme, by=owner, slug="acme")  # its own
    assert accounts.slug_now("acme-two") == "acme" and accounts.slug_now("acme") is None
    with time_machine.travel(timezone.now() + timedelta(days=731)):
        assert accounts.slug_now("acme-two") is None
        services.create_organization(owner=make_user(), slug="acme-two", name="New")
    assert not FormerName.objects.exists()


def test_an_erased_organizations_name_is_kept_without_being_known(acme, owner) -> None:
    organizations.rename(organization=acme, by=owner, slug="acme-two")
    erase_organization(organization=acme, by=owner.pk)
    assert "acme" not in str(list(FormerName.objects.values_list("slug", flat=True)))
    for slug in ("acme", "acme-two"):
        with pytest.raises(Conflict):
            services.create_organization(owner=make_user(), slug=slug, name="Fake")
        assert accounts.slug_now(slug) is None


def test_names_have_rules_and_a_year_has_three(acme, owner) -> None:
    refused = [("admin", InvalidInput), ("Bad Slug", InvalidInput), ("", InvalidInput), ("x" * 41, InvalidInput)]
    for slug, error in refused:
        with pytest.raises(error):
            organizations.rename(organization=acme, by=owner, slug=slug)
    for user in (add_member(acme, "billing"), add_member(acme, "developer"), make_user()):
        with pytest.raises(NotAllowed):
            organizations.rename(organization=acme, by=user, slug="mine")
        with pytest.raises(NotAllowed):
            organizations.set_logo(organization=acme, by=user, content=picture())
    for number in range(3):
        organizations.rename(organization=acme, by=owner, slug=f"acme-{number}")
    with pytest.raises(NotAllowed) as limit:
        organizations.rename(organization=acme, by=owner, slug="acme-4")
    assert limit.value.code == "too_many_renames"
    assert Organization.objects.get(pk=acme.pk).slug == "acme-2"
    for name in ("", " ", "x" * 101):
        with pytest.raises(InvalidInput):
            organizations.change_name(organization=acme, by=owner, name=name)


def test_a_logo_is_drawn_anew_and_served_to_be_kept(acme, owner) -> None:
    Client()
    for kind in ("PNG", "JPEG", "WEBP"):
        organizations.set_logo(organization=acme, by=owner, content=picture(kind))
    response = Client().get(f"/logos/{acme.logo}.webp")
    assert response["Content-Type"] == "image/webp" and "immutable" in response["Cache-Control"]
    assert "sandbox" in response["Content-Security-Policy"] and response["X-Content-Type-Options"] == "nosniff"
    with Image.open(io.BytesIO(response.content)) as drawn:
        assert (drawn.format, drawn.size) == ("WEBP", (256, 256))
    page = Client().get(f"/models/acme/{make_version(make_model(acme)).model.slug}").content.decode()
    assert f"/logos/{acme.logo}.webp" in page and "Acme" in page
    organizations.remove_logo(organization=acme, by=owner)
    assert Client().get(f"/logos/{'0' * 64}.webp").status_code == 404


def test_what_is_no_picture_is_refused(acme, owner) -> None:
    script = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    gif = picture("GIF")
    huge = picture(size=(pictures.MAX_SIDE + 1, 1))
    for content in (b"", script, gif, huge, picture()[:100], b"\x89PNG\r\n\x1a\n" + bytes(50), bytes(2 * 2**20)):
        with pytest.raises((InvalidInput, TooLarge)) as refused:
            organizations.set_logo(organization=acme, by=owner, content=content)
        assert refused.value.field == "logo"
    acme.refresh_from_db()
    assert acme.logo == ""
