"""The staff's pages: each act asks for the password again, is recorded, and does what its operation of the API does."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.contrib.sessions.backends.db import SessionStore
from django.http import Http404
from django.test import AsyncRequestFactory, Client
from django.utils import timezone

from billing.models import Correction, Incident
from billing.payouts.freezes import Code, freezes
from billing.selectors import wallet
from billing.top_ups import start_top_up
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.models import AuditEntry, Organization
from marketplace.alerts.models import Alert
from marketplace.operations.models import Incident as Trouble
from marketplace.publishing.gate import publish_version
from marketplace.vault.models import EnrolledReplica, Replica
from marketplace.vault.selectors import live_replicas
from marketplace.web.views.live import live
from tests.billing.support import credit_promotion, hold_request, place, settle
from tests.billing.test_incidents import code_of
from tests.marketplace.catalog.factories import make_user
from tests.marketplace.vault.factories import make_lease, make_replica
from tests.marketplace.web.conftest import World
from tests.marketplace.web.sessions import stale
from tests.marketplace.web.test_access import assert_clean

FLEET = "/platform/fleet"


@pytest.fixture
def staff(world: World) -> Client:
    return world.client(world.staff)


def acts(organization: Organization) -> list[tuple[str, str, bool]]:
    rows = AuditEntry.objects.filter(organization=organization, as_staff=True).order_by("id")
    return [(row.act, row.subject, row.as_staff) for row in rows]


def test_each_act_of_staff_asks_for_the_password_again(world: World) -> None:
    client = stale(world.client(world.staff))
    for path in (
        f"{FLEET}/r1/drain",
        f"{FLEET}/r1/revoke",
        FLEET,
        "/platform/status",
        "/platform/organizations/northbank/suspend",
        f"/platform/refunds/{world.usage[0].prediction_id}",
    ):
        response = client.post(path, {"reason": "x"})
        assert response.status_code == 302 and "/accounts/reauthenticate/" in response.headers["Location"], path
    assert EnrolledReplica.objects.get().drained_at is None and live_replicas()
    assert not Organization.objects.exclude(suspended_at=None).exists()


def test_the_fleet_shows_pools_events_and_where_an_adapter_is(world: World, staff: Client) -> None:
    Replica.objects.update(stats={"running": 2, "waiting": 1, "seats": 8, "waits": [1.4, 1.4, 1.4]})
    make_lease(world.published, Replica.objects.get())
    page = staff.get(FLEET, {"model": "ledgerline/transactions"})
    assert_clean(page)
    text = page.content.decode()
    assert "data-pool=" in text and ">late<" in text and "registered" in text
    assert "ledgerline/transactions@1</dt>" in text and 'data-bar="running_percent" width="25"' in text
    assert "There is no model" in staff.get(FLEET, {"model": "<b>nobody"}).content.decode()


def test_a_drained_replica_gets_no_new_work_until_it_is_sent_work_again(world: World, staff: Client) -> None:
    Organization.objects.create(slug="intarsia", name="Intarsia")
    later = timezone.now() + timedelta(hours=1)  # no heartbeats come, and the machine may be slow
    Replica.objects.update(stats={"running": 2, "tokens_per_second": 7.5}, last_seen_at=later)
    make_lease(world.published, Replica.objects.get())
    page = staff.get(FLEET)
    assert_clean(page)
    text = page.content.decode()
    assert "ledgerline/transactions@1" in text and "7.5" in text and "live" in text
    assert staff.post(f"{FLEET}/r1/drain").status_code == 302
    assert live_replicas() == [] and "draining" in staff.get(FLEET).content.decode()
    Replica.objects.update(stats={"running": 0})
    assert ">drained<" in staff.get(FLEET).content.decode()
    staff.post(f"{FLEET}/r1/undrain")
    assert [replica.name for replica in live_replicas()] == ["r1"]
    staff.post(f"{FLEET}/r1/revoke")
    assert ">revoked<" in staff.get(FLEET).content.decode() and live_replicas() == []
    platform = Organization.objects.get(slug="intarsia")
    assert [act for act, _, _ in acts(platform)] == ["replica.drained", "replica.undrained", "replica.revoked"]
    assert {as_staff for _, _, as_staff in acts(platform)} == {True}
    staff.post(f"{FLEET}/nobody/drain")
    assert "Staff never allowed" in staff.get(FLEET).content.decode()


def test_a_replica_is_allowed_and_its_credential_shown_once(world: World, staff: Client) -> None:
    data = {"name": "new-1", "base": "ab" * 32, "host": "10.0.0.7", "releases_per_hour": "100"}
    page = staff.post(FLEET, data)
    assert page.status_code == 201 and 'id="credential">irc_' in page.content.decode()
    assert "waiting" in staff.get(FLEET).content.decode() and "irc_" not in staff.get(FLEET).content.decode()
    assert staff.post(FLEET, data | {"host": "a b"}).status_code == 400
    assert EnrolledReplica.objects.get(name="new-1").host == "10.0.0.7"


async def test_numbers_come_as_events_to_staff_alone_and_end_with_the_session(transactional_db: None) -> None:
    def signed_in(*, is_staff: bool) -> Client:
        client = Client()
        client.force_login(make_user(is_staff=is_staff))
        return client

    await sync_to_async(make_replica)()
    client = await sync_to_async(signed_in)(is_staff=True)
    member = await sync_to_async(signed_in)(is_staff=False)
    request = AsyncRequestFactory().get("/platform/live")
    for nobody in (SessionStore(), await sync_to_async(lambda: member.session)()):
        request.session = nobody
        with pytest.raises(Http404):
            await live(request)
    request.session = await sync_to_async(lambda: client.session)()
    response = await live(request)
    assert response.headers["Content-Type"] == "text/event-stream"
    events = aiter(response.streaming_content)
    assert (await anext(events)).startswith(b"retry:")
    numbers = json.loads((await anext(events)).partition(b"data: ")[2])
    assert numbers["replicas"][0]["name"] == "r1" and numbers["open_holds"] == 0
    await sync_to_async(client.logout)()
    assert (await anext(events)).startswith(b"event: over")
    with pytest.raises(StopAsyncIteration):
        await anext(events)


def test_a_suspended_organization_neither_publishes_nor_pays_nor_is_paid_nor_is_found(
    world: World, staff: Client
) -> None:
    path = "/platform/organizations/ledgerline"
    assert staff.post(f"{path}/suspend", {"reason": " "}).status_code == 400
    assert staff.post(f"{path}/suspend", {"reason": "Stolen weights."}).status_code == 302
    assert "Stolen weights." in staff.get(path).content.decode()
    for user in (None, world.consumer, world.staff):
        assert world.client(user).get("/models/ledgerline/transactions").status_code == 404
        assert "Ledgerline Transactions" not in world.client(user).get("/models/").content.decode()
    own = world.client(world.creator)
    assert own.get("/models/ledgerline/transactions").status_code == 200
    assert "ledgerline is suspended:" in own.get("/dashboard/").content.decode()
    with pytest.raises(NotAllowed, match="suspended"):
        publish_version(version=world.verified)
    with pytest.raises(NotAllowed, match="suspended"):
        start_top_up(organization=world.seller, amount_cents=500, success_url="x", cancel_url="x")
    assert Code.SUSPENDED in [freeze.code for freeze in freezes(world.seller)]
    told = Alert.objects.get(organization=world.seller)
    assert "Stolen weights." in told.text and "appeal" in told.text and "support@" in told.text
    assert staff.post(f"{path}/suspend", {"reason": "Again."}).status_code == 409
    staff.post(f"{path}/reinstate", {"reason": "It was a mistake."})
    assert world.client(None).get("/models/ledgerline/transactions").status_code == 200
    assert acts(world.seller) == [
        ("organization.suspended", "ledgerline", True),
        ("organization.reinstated", "ledgerline", True),
    ]


def test_organizations_are_found_by_name_and_by_a_members_address(world: World, staff: Client) -> None:
    for query in ("northb", "consumer@exam"):
        text = staff.get("/platform/organizations", {"q": query}).content.decode()
        assert "/platform/organizations/northbank" in text and "/platform/organizations/ledgerline" not in text
    assert "No organization is like that" in staff.get("/platform/organizations?suspended=on").content.decode()


def test_a_prediction_is_refunded_once_with_a_reason(world: World, staff: Client) -> None:
    credit_promotion(organization=world.buyer, amount_nano_usd=10**9, reference="more")
    prediction = place(hold_request(world.buyer, world.seller)).prediction_id
    settle(prediction)
    before = wallet(world.buyer).posted
    page = staff.get("/platform/refunds", {"id": str(prediction)})
    assert_clean(page)
    assert "northbank" in page.content.decode() and "Give it back" in page.content.decode()
    data = {"amount": "0.000000007", "reason": "The answer was cut.", "request_id": str(uuid.uuid4())}
    assert staff.post(f"/platform/refunds/{prediction}", data | {"reason": ""}).status_code == 400
    for _ in range(2):
        assert staff.post(f"/platform/refunds/{prediction}", data).status_code == 302
    assert Correction.objects.get().amount_nano_usd == 7 == wallet(world.buyer).posted - before
    assert acts(world.buyer) == [("prediction.refunded", str(prediction), True)]
    assert "The answer was cut." in Alert.objects.get(organization=world.buyer).text
    assert "No prediction" in staff.get("/platform/refunds", {"id": str(uuid.uuid4())}).content.decode()


def test_incidents_of_the_books_are_resolved_on_the_page_with_a_code(world: World, staff: Client) -> None:
    incident = Incident.objects.create(kind=Incident.Kind.RECONCILIATION, subject="txn_1", detail={"what": "x"})
    assert "1 freezes payouts" in staff.get("/platform/ledger").content.decode()
    staff.post(f"/platform/ledger/{incident.pk}/resolve", {"code": "000000", "reason": "x"})
    incident.refresh_from_db()
    assert incident.resolved_at is None
    staff.post(f"/platform/ledger/{incident.pk}/resolve", {"code": code_of(world.staff), "reason": "A fee."})
    incident.refresh_from_db()
    assert incident.resolved_at is not None


def test_staff_write_the_status_page(world: World, staff: Client) -> None:
    data = {"kind": "major", "title": "No answers", "components": ["predictions"], "text": "We see it."}
    assert staff.post("/platform/status", data).status_code == 302
    assert staff.post("/platform/status", data | {"components": []}).status_code == 400
    soon = timezone.now() + timedelta(days=1)
    planned = {"starts_at": f"{soon:%Y-%m-%dT%H:%M}", "ends_at": f"{soon + timedelta(hours=1):%Y-%m-%dT%H:%M}"}
    work = data | {"kind": "maintenance", "title": "A new database"}
    assert staff.post("/platform/status", work).status_code == 400
    assert staff.post("/platform/status", work | planned).status_code == 302
    incident = Trouble.objects.get(kind="major")
    page = world.client(None).get("/status")
    assert_clean(page)
    text = page.content.decode()
    assert "No answers" in text and "Not working" in text and "A new database" in text
    staff.post(f"/platform/status/{incident.pk}", {"state": "resolved", "text": "A cable."})
    feed = world.client(None).get("/status.atom")
    assert feed["Content-Type"].startswith("application/atom+xml") and "A cable." in feed.content.decode()
    status = world.client(None).get("/status.json").json()
    assert [one["title"] for one in status["incidents"]] == ["No answers"]
    assert [one["title"] for one in status["maintenance"]] == ["A new database"]
    assert status["incidents"][0]["updates"][0]["state"] == "resolved" and "by" not in status["incidents"][0]
