"""Every page for everybody: who sees it, who does not, and that a refusal changes nothing."""

from __future__ import annotations

import re
import uuid

import pytest
from django.urls import reverse

from marketplace.accounts.models import Membership
from marketplace.catalog.models import Evaluation
from tests.marketplace.web.conftest import World

PUBLIC = [
    "/",
    "/models/",
    "/models/?q=bank",
    "/models/?q=bank&industry=Finance&max_ttft_ms=500",
    "/models/?industry=nothing&base=tiny&tag=x&licence=MIT&max_output_micro_usd_per_mtok=1&min_accuracy_bps=z",
    "/models/ledgerline/transactions",
    "/models/ledgerline/transactions/price",
    "/ranking",
    "/pricing",
    "/docs/",
    "/docs/start-consumer",
    "/docs/reference/predictions",
    "/status",
]
GATES = ["/accounts/login/", "/accounts/signup/", "/accounts/password/reset/", "/accounts/password/reset/done/"]
MEMBER = [
    "/dashboard/",
    "/dashboard/keys",
    "/dashboard/alerts",
    "/dashboard/webhooks",
    "/dashboard/budgets",
    "/dashboard/comparisons",
    "/dashboard/runs",
    "/dashboard/batches",
    "/dashboard/usage",
    "/dashboard/usage?days=90",
    "/dashboard/usage.csv",
    "/dashboard/playground",
    "/dashboard/playground?model=ledgerline/transactions",
    "/dashboard/organization/settings",
    "/dashboard/organization/new",
    "/dashboard/members",
    "/dashboard/audit",
    "/dashboard/audit?act=key&since=2026-01-01",
    "/dashboard/audit.csv",
    "/dashboard/wallet",
    "/dashboard/payouts",
    "/dashboard/statements",
    "/dashboard/statements?month=2026-01",
    "/dashboard/statements/2026-01.csv",
    "/dashboard/statements/2026-01.pdf",
    "/dashboard/invoices",
    "/dashboard/billing-profile",
    "/dashboard/models",
    "/dashboard/new-model",
    "/dashboard/security",
    "/device",
    "/dashboard/selling",
    "/dashboard/earnings",
    "/dashboard/earnings?since=2026-01-01&until=2026-02-01",
    "/dashboard/earnings.csv",
    "/accounts/email/",
    "/accounts/2fa/",
    "/accounts/password/change/",
    "/accounts/logout/",
]
CREATOR = [
    "/dashboard/models/transactions",
    "/dashboard/models/transactions/custody",
    "/dashboard/models/transactions/listing",
    "/dashboard/models/transactions/in-use",
    "/dashboard/models/transactions/versions/1",
    "/dashboard/models/transactions/versions/2",
    "/dashboard/models/transactions/protection",
    "/dashboard/models/transactions/access",
    "/dashboard/custody.json",
]
STAFF = [
    "/platform/audit",
    "/platform/",
    "/platform/disputes",
    "/platform/reviews",
    "/platform/fleet",
    "/platform/ledger",
    "/platform/status",
    "/platform/guards",
    "/platform/evaluations",
    "/platform/organizations",
    "/platform/organizations/northbank",
    "/platform/features",
    "/platform/refunds",
]
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", re.IGNORECASE)


def assert_clean(response) -> None:
    """The policy is there and the HTML needs no exception to it."""
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy
    if response.headers["Content-Type"].startswith("text/html"):
        found = INLINE.search(response.content.decode())
        assert found is None, response.content.decode()[max(0, found.start() - 80) : found.end() + 80]


# The loops below share one world each: building it takes longer than reading a page.
def test_public_pages_open_for_strangers(world: World) -> None:
    run = Evaluation.objects.get().run_id
    for path in [*PUBLIC, f"/evaluations/{run}", f"/evaluations/{run}?page=2", *GATES]:
        response = world.client(None).get(path)
        assert response.status_code == 200, path
        assert_clean(response)


def test_the_page_of_an_evaluation_is_as_public_as_its_model(world: World) -> None:
    path = f"/evaluations/{Evaluation.objects.get().run_id}"
    page = world.client(None).get(path).content.decode()
    assert "113 of 120 answers right" in page and page.count('class="right"') == 113 + 31
    assert world.client(None).get(f"{path}/receipts/{uuid.uuid4()}.json").status_code == 404
    world.model.visibility = "private"
    world.model.save()
    assert world.client(None).get(path).status_code == world.client(world.stranger).get(path).status_code == 404
    assert world.client(world.creator).get(path).status_code == 200
    assert world.client(None).get(f"/evaluations/{uuid.uuid4()}").status_code == 404


def test_private_pages_send_strangers_to_sign_in(world: World) -> None:
    for path in [*MEMBER, *CREATOR, *STAFF]:
        response = world.client(None).get(path)
        assert response.status_code == 302, path
        assert response.headers["Location"].startswith("/accounts/login/") or path == "/accounts/logout/"


@pytest.mark.parametrize("who", ["consumer", "creator", "stranger", "staff"])
def test_member_pages_open_for_every_owner(world: World, who: str) -> None:
    client = world.client(getattr(world, who))
    for path in PUBLIC + MEMBER:
        response = client.get(path)
        assert response.status_code == 200, path
        assert_clean(response)


def test_creator_pages_open_for_the_creator(world: World) -> None:
    client = world.client(world.creator)
    for path in CREATOR:
        response = client.get(path)
        assert response.status_code == 200, path
        assert_clean(response)


def test_somebody_elses_model_is_not_found(world: World) -> None:
    for user in (world.consumer, world.stranger, world.staff):
        for path in CREATOR[:5]:
            response = world.client(user).get(path)
            assert response.status_code == 404
            assert_clean(response)


def test_outsiders_cannot_move_a_version(world: World) -> None:
    for action, version in (("publish", world.verified), ("retire", world.published), ("revoke", world.published)):
        path = f"/dashboard/models/transactions/versions/{version.number}/{action}"
        for user in (world.consumer, world.stranger, world.staff):
            assert world.client(user).post(path, {"reason": "mine now"}).status_code == 404
    world.published.refresh_from_db()
    world.verified.refresh_from_db()
    assert (world.published.state, world.verified.state) == ("published", "verified")


def test_outsiders_cannot_set_a_price(world: World) -> None:
    before = world.model.prices.count()
    data = {"input": "1", "cached_input": "1", "output": "1", "per_prediction": "0"}
    assert world.client(world.consumer).post("/dashboard/models/transactions", data).status_code == 404
    assert world.model.prices.count() == before


def test_outsiders_cannot_revoke_a_key(world: World) -> None:
    path = reverse("web:revoke_key", kwargs={"key_id": world.key.pk})
    assert world.client(world.stranger).post(path).status_code == 404
    world.key.refresh_from_db()
    assert world.key.revoked_at is None


def test_a_receipt_is_its_buyers_alone(world: World) -> None:
    path = reverse("web:receipt", kwargs={"prediction_id": world.usage[0].prediction_id})
    page = world.client(world.consumer).get(path).content.decode()
    assert "Signature verified" in page and "ledgerline/transactions@1" in page, "the version that answered"
    for user in (world.creator, world.stranger, world.staff):
        assert world.client(user).get(path).status_code == 404
    assert world.client(world.consumer).get(reverse("web:receipt", args=[uuid.uuid4()])).status_code == 404


def test_the_platform_page_is_for_staff(world: World) -> None:
    response = world.client(world.staff).get("/platform/")
    assert response.status_code == 200
    assert "balanced" in response.content.decode()
    assert_clean(response)
    assert (
        "words and spelling only" in response.content.decode() and "SEARCH_ENCODER is off" in response.content.decode()
    )
    assert world.client(world.consumer).get("/platform/").status_code == 404
    assert_clean(world.client(world.staff).get("/platform/disputes"))
    assert "Decisions of staff" in world.client(world.staff).get("/platform/audit").content.decode()
    assert world.client(world.consumer).get("/platform/disputes").status_code == 404
    for extension, start in (("pdf", b"%PDF-"), ("csv", b"document,number,")):
        path = f"/platform/statements/2026-01.{extension}"
        assert world.client(world.staff).get(path).content.startswith(start)
        assert world.client(world.consumer).get(path).status_code == 404


def test_pages_of_staff_are_found_by_nobody_else(world: World) -> None:
    for path in STAFF:
        assert_clean(world.client(world.staff).get(path))
        for user in (world.consumer, world.creator):
            assert world.client(user).get(path).status_code == 404, path


def test_a_developer_sees_no_money(world: World) -> None:
    for path in ("/dashboard/wallet", "/dashboard/webhooks", "/dashboard/audit"):
        response = world.client(world.developer).get(path)
        assert response.status_code == 403, path
        assert "Not for your role" in response.content.decode()
        assert_clean(response)


def test_a_developer_creates_no_key_that_reaches_money(world: World) -> None:
    before = world.buyer.api_keys.count()
    data = {"name": "x", "scopes": ["account"], "days": "0"}
    assert world.client(world.developer).post("/dashboard/keys", data).status_code == 400
    assert world.buyer.api_keys.count() == before


def test_a_user_switches_only_to_their_own_organizations(world: World) -> None:
    Membership.objects.create(organization=world.seller, user=world.consumer, role=Membership.Role.DEVELOPER)
    client = world.client(world.consumer)
    assert client.post("/dashboard/organization", {"organization": "elsewhere"}).status_code == 404
    assert "northbank" in client.get("/dashboard/").content.decode()
    assert client.post("/dashboard/organization", {"organization": "ledgerline"}).status_code == 302
    assert client.get("/dashboard/models/transactions").status_code == 200
    Membership.objects.filter(organization=world.seller, user=world.consumer).delete()
    assert client.get("/dashboard/models/transactions").status_code == 404


def test_a_user_without_an_organization_is_told_so(world: World) -> None:
    Membership.objects.filter(user=world.stranger).delete()
    response = world.client(world.stranger).get("/dashboard/")
    assert response.status_code == 403
    assert "do not belong to an organization" in response.content.decode()


def test_error_pages_carry_the_policy(world: World) -> None:
    client = world.client(None)
    client.raise_request_exception = False
    response = client.get("/no/such/page")
    assert response.status_code == 404
    assert "Nothing was charged" in response.content.decode()
    assert_clean(response)


def test_a_form_without_its_token_changes_nothing(world: World) -> None:
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    client.force_login(world.consumer)
    response = client.post(reverse("web:revoke_key", kwargs={"key_id": world.key.pk}))
    assert response.status_code == 403
    assert "form was out of date" in response.content.decode()
    world.key.refresh_from_db()
    assert world.key.revoked_at is None
