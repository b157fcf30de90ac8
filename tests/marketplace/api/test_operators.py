"""The staff's operations: the acts of their pages, with a code for money, keys and organizations."""

from __future__ import annotations

import uuid

import pytest
from django.core.cache import cache

from marketplace.accounts.models import AuditEntry, Organization, User
from marketplace.accounts.services import create_api_key
from marketplace.vault.models import EnrolledReplica, Replica
from tests.billing.support import credit_promotion, hold_request, place, settle
from tests.billing.test_incidents import code_of
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_organization, make_user
from tests.marketplace.vault.factories import make_lease, make_replica, make_sold

pytestmark = pytest.mark.django_db


@pytest.fixture
def person() -> User:
    return make_user("staff@example.com", is_staff=True)


@pytest.fixture
def staff(person: User) -> Api:
    platform = make_organization("intarsia", person)
    return Api(create_api_key(organization=platform, name="ops", scopes=["read"], created_by=person)[1])


def code(person: User) -> str:
    cache.clear()  # a code is used up, and the clock of a test stands still
    return code_of(person)


def test_the_fleet_is_listed_drained_and_revoked(staff: Api, person: User) -> None:
    make_replica("r1")
    (line,) = staff.get("platform/replicas").json()["results"]
    assert (line["name"], line["state"], line["drained"]) == ("r1", "live", False)
    assert staff.post("platform/replicas/r1/drain").json()["state"] == "drained"
    assert staff.post("platform/replicas/r1/undrain").json()["state"] == "live"
    assert error_of(staff.post("platform/replicas/r1/revoke", {"code": "000000"}), 403)["code"]
    assert EnrolledReplica.objects.get().revoked_at is None
    assert staff.post("platform/replicas/r1/revoke", {"code": code(person)}).json()["state"] == "revoked"
    error_of(staff.post("platform/replicas/nobody/drain"), 404)
    acts = list(AuditEntry.objects.filter(as_staff=True).order_by("id").values_list("act", "as_staff"))
    assert acts == [("replica.drained", True), ("replica.undrained", True), ("replica.revoked", True)]


def test_the_whole_fleet_is_shown_by_pools(staff: Api) -> None:
    sold = make_sold()
    make_replica("r1")
    Replica.objects.update(stats={"running": 3, "seats": 8, "waits": [0.25, 0.25, 0.25]})
    make_lease(sold.version, Replica.objects.get())
    name = sold.version.model.full_name
    shown = staff.get(f"platform/fleet?model={name}").json()
    (pool,) = shown["pools"]
    assert (pool["name"], pool["state"], pool["seats"], pool["running"]) == ("tiny", "healthy", 8, 3)
    assert (pool["scaling"], pool["classes"][0]["wait_s"], shown["healthy"]) == (None, 0.25, True)
    assert [line["name"] for line in shown["replicas"]] == ["r1"] == [event["replica"] for event in shown["events"]]
    assert shown["adapters"] == [{"name": f"{name}@{sold.version.number}", "replicas": ["r1"]}]
    assert staff.get("platform/fleet").json()["adapters"] is None
    error_of(staff.get("platform/fleet?model=nobody/nothing"), 404)


def test_the_seller_on_papers_is_written_with_a_code(staff: Api, person: User) -> None:
    path, text = "platform/billing-profile", {"legal_name": "A", "line1": "B 1", "city": "C", "country": "DE"}
    error_of(staff.get(path), 404)
    error_of(staff.put(path, text | {"code": "000000"}), 403)
    assert staff.put(path, text | {"code": code(person)}).json()["legal_name"] == "A"
    assert staff.get(path).json()["city"] == "C"


def test_a_replica_is_allowed(staff: Api, person: User) -> None:
    make_replica("r1")
    wanted = {"name": "r2", "base": "tiny", "host": "10.0.0.2"}
    assert error_of(staff.post("platform/replicas", wanted | {"code": "000000"}), 403)
    answer = staff.post("platform/replicas", wanted | {"code": code(person)})
    assert answer.status_code == 201 and answer.json()["credential"].startswith("irc_")
    assert (
        error_of(staff.post("platform/replicas", wanted | {"base": "x", "code": code(person)}), 400)["field"] == "base"
    )


def test_an_organization_is_suspended_and_reinstated(staff: Api, person: User) -> None:
    make_organization("acme")
    path = "platform/organizations/acme"
    assert error_of(staff.post(f"{path}/suspend", {"code": "000000", "reason": "Fraud."}), 403)
    assert staff.post(f"{path}/suspend", {"code": code(person), "reason": "Fraud."}).json()["suspended_at"]
    (found,) = staff.get("platform/organizations?suspended=true").json()["results"]
    assert (found["slug"], found["suspension_reason"]) == ("acme", "Fraud.")
    assert staff.post(f"{path}/reinstate", {"code": code(person), "reason": "Paid."}).json()["suspended_at"] is None
    own = staff.post("platform/organizations/intarsia/suspend", {"code": code(person), "reason": "x"})
    assert error_of(own, 409)["code"] == "own_organization"
    error_of(staff.get("platform/organizations/nobody"), 404)


def test_a_prediction_is_given_back(staff: Api, person: User) -> None:
    buyer: Organization = make_organization("buyer")
    credit_promotion(organization=buyer, amount_nano_usd=10_000, reference="x")
    prediction = place(hold_request(buyer, make_organization("maker"))).prediction_id
    settle(prediction)
    path = f"platform/predictions/{prediction}/refund"
    body = {"reason": "Cut.", "amount_nano_usd": 3}
    assert error_of(staff.post(path, body | {"code": "000000"}), 403)
    for given in (3, 0):
        answer = staff.post(path, body | {"code": code(person)}, **{"Idempotency-Key": "once"})
        assert answer.json()["given_nano_usd"] == given
    error_of(staff.post(f"platform/predictions/{uuid.uuid4()}/refund", body | {"code": code(person)}), 404)
    error_of(
        staff.post(f"platform/topups/{uuid.uuid4()}/refund", {"reason": "x", "amount_cents": 1, "code": code(person)}),
        404,
    )


def test_the_status_page_is_public_and_written_by_staff(staff: Api) -> None:
    posted = {"kind": "minor", "title": "Slow", "components": ["api"], "text": "We see it."}
    answer = staff.post("platform/status", posted)
    assert answer.status_code == 201
    updated = staff.post(f"platform/status/{answer.json()['id']}/updates", {"state": "resolved", "text": "Over."})
    assert updated.json()["resolved_at"]
    public = Api().get("status").json()
    assert [one["title"] for one in public["incidents"]] == ["Slow"] and len(public["components"][0]["days"]) == 90
    error_of(staff.post("platform/status", posted | {"components": ["nothing"]}), 400)


def test_what_staff_look_at(staff: Api) -> None:
    health = staff.get("platform/health").json()
    assert health["ledger_sum_nano_usd"] == 0 and health["open_incidents"] == 0 and len(health["checks"]) == 7
    assert staff.get("platform/guards").json() == {"models": [], "askers": [], "copiers": []}
    for state in ("open", "failed"):
        assert staff.get(f"platform/evaluations?state={state}").json()["results"] == []


def test_nobody_else_may(person: User) -> None:
    member = Api.of(make_organization("acme"))
    for path in ("fleet", "replicas", "health", "guards", "evaluations", "organizations", "organizations/acme"):
        assert error_of(member.get(f"platform/{path}"), 403)["code"] == "staff_only"
        error_of(Api().get(f"platform/{path}"), 401)
    for path in ("replicas/r1/drain", "organizations/acme/suspend", "status", f"predictions/{uuid.uuid4()}/refund"):
        assert error_of(member.post(f"platform/{path}", {}), 403)["code"] == "staff_only"


def test_a_feature_is_switched(staff: Api, person: User) -> None:
    make_organization("acme")
    names = [row["name"] for row in staff.get("platform/features").json()["results"]]
    assert names[:2] == ["predictions", "batches"]
    wanted = {"percent": 0, "on_for": ["acme"]}
    error_of(staff.call("put", "platform/features/batches", wanted | {"code": "000000"}), 403)
    shown = staff.call("put", "platform/features/batches", wanted | {"code": code(person)}).json()
    assert (shown["state"], shown["percent"], shown["on_for"]) == ("in part", 0, ["acme"])
    error_of(staff.call("put", "platform/features/teleports", wanted | {"code": code(person)}), 404)
