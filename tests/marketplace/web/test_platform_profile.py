"""The legal person that papers name as the seller: staff write it, also where the platform has no organization yet."""

from __future__ import annotations

import pytest

from billing.papers.profiles import platform_party
from marketplace.accounts.models import AuditEntry, Membership
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.django_db
PATH = "/platform/billing-profile"
WAITS = "The platform has not written its own legal name yet"
TEXT = {"legal_name": "Intarsia GmbH", "line1": "Musterstraße 1", "city": "Berlin", "country": "DE"}


def test_staff_are_asked_for_it_and_papers_are_promised_only_then(world: World) -> None:
    staff, customer = world.client(world.staff), world.client(world.stranger)
    papers = "/dashboard/invoices"
    assert platform_party() is None and PATH in staff.get("/platform/").content.decode()
    assert WAITS in customer.get(papers).content.decode()
    assert staff.post(PATH, TEXT | {"city": ""}).status_code == 400 and platform_party() is None
    assert staff.post(PATH, TEXT).status_code == 302
    seller = platform_party()
    assert seller is not None and seller.name == "Intarsia GmbH"
    assert WAITS not in customer.get(papers).content.decode()
    owner = Membership.objects.get(organization__slug="intarsia", role="owner")
    entry = AuditEntry.objects.get(act="billing_profile.changed")
    assert (owner.user, entry.user_id, entry.as_staff) == (world.staff, world.staff.pk, True)
