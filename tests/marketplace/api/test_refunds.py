"""Refunds of top-ups and disputes through the API: what moves, and refusals that move nothing."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from allauth.mfa.models import Authenticator

from billing.disputes.services import refresh_dispute
from billing.models import Dispute, TopUp, TopUpRefund
from billing.pricing import NANO_PER_CENT
from billing.selectors import wallet
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.accounts.models import Organization, User
from protocol.encoding import encode_base64url
from tests.billing.conftest import double
from tests.billing.payments import open_dispute, paid
from tests.billing.test_incidents import code_of, make_user
from tests.billing.top_ups import begin
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_organization

__all__ = ["double"]  # the fixture
pytestmark = pytest.mark.django_db
PDF = encode_base64url(b"%PDF-1.7 proof")


@pytest.fixture
def acme(settings: Any) -> Organization:
    settings.ROOT_URLCONF = "marketplace.config.urls"
    return make_organization("acme")


@pytest.fixture
def staff() -> User:
    return make_user("staff")


@pytest.fixture
def operator(staff: User) -> Api:
    """A key of the platform's own organization."""
    return Api.of(make_organization("intarsia", owner=staff))


def test_unspent_credit_goes_back_in_parts_and_then_whole(acme: Organization, double: StripeDouble) -> None:
    double.tax_percent = 20
    api, top_up = Api.of(acme), paid(double, acme, 2_500)
    path = f"topups/{top_up.pk}/refunds"
    assert api.get(path).json() == {"refundable_cents": 2_500, "freezes": [], "results": []}
    part = api.post(path, {"amount_cents": 700})
    assert part.status_code == 201
    shown = part.json()
    assert (shown["state"], shown["amount_cents"], shown["tax_cents"]) == ("sent", 700, 140)
    assert shown["top_up_id"] == str(top_up.pk) and "stripe_refund_id" not in shown
    assert api.post(path, {}).json()["amount_cents"] == 1_800
    found = api.get(path).json()
    assert found["refundable_cents"] == 0 and [row["amount_cents"] for row in found["results"]] == [1_800, 700]
    assert wallet(acme).posted == 0
    error = error_of(api.post(path, {}), 409)
    assert error["code"] == "amount_not_refundable"
    assert TopUpRefund.objects.count() == 2


def test_a_key_makes_a_retry_the_same_refund(acme: Organization, double: StripeDouble) -> None:
    api, top_up = Api.of(acme), paid(double, acme, 2_500)
    path, key = f"topups/{top_up.pk}/refunds", {"Idempotency-Key": "refund-1"}
    double.faults.requests.append(Fault(FaultKind.DROP_AFTER_COMMIT, path="/v1/refunds", times=3))
    first = api.post(path, {"amount_cents": 700}, **key).json()
    assert first["state"] == "requested"  # Stripe's answer was lost
    again = api.post(path, {"amount_cents": 700}, **key).json()
    assert (again["id"], again["state"]) == (first["id"], "sent")
    assert error_of(api.post(path, {"amount_cents": 701}, **key), 422)["code"] == "idempotency_key_reused"
    assert api.post(path, {}, **key).json()["id"] == first["id"]
    assert wallet(acme).posted == 1_800 * NANO_PER_CENT and TopUpRefund.objects.count() == 1
    assert len(double.state.of_kind("refund")) == 1


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"amount_cents": 0}, 400, "amount_cents"),
        ({"amount_cents": "all"}, 400, "amount_cents"),
        ({"amount_cents": 2_501}, 409, "amount_cents"),
    ],
)
def test_a_bad_amount_is_named_and_moves_nothing(
    acme: Organization, double: StripeDouble, body: dict[str, Any], status: int, field: str
) -> None:
    top_up = paid(double, acme, 2_500)
    assert error_of(Api.of(acme).post(f"topups/{top_up.pk}/refunds", body), status)["field"] == field
    assert not TopUpRefund.objects.exists() and wallet(acme).posted == 2_500 * NANO_PER_CENT


def test_a_payment_that_did_not_arrive_and_that_of_others_are_not_refunded(
    acme: Organization, double: StripeDouble
) -> None:
    waiting, stranger = begin(acme), Api.of(make_organization("other"))
    error_of(Api.of(acme).post(f"topups/{waiting.pk}/refunds", {"amount_cents": 100}), 404)
    theirs = paid(double, acme, 2_500)
    for method, body in (("GET", None), ("POST", {"amount_cents": 100})):
        error_of(stranger.call(method, f"topups/{theirs.pk}/refunds", body), 404)
    assert not TopUpRefund.objects.exists()


def test_a_dispute_is_listed_for_its_organization_and_freezes_refunds(acme: Organization, double: StripeDouble) -> None:
    top_up = paid(double, acme, 2_500)
    refresh_dispute(dispute_id=open_dispute(double, top_up))
    api = Api.of(acme)
    (shown,) = api.get("disputes").json()["results"]
    assert (shown["state"], shown["inquiry"], shown["amount_cents"]) == ("open", False, 2_500)
    assert shown["frozen_nano_usd"] == 2_500 * NANO_PER_CENT and shown["top_up_id"] == str(top_up.pk)
    other = paid(double, acme, 900)
    assert "disputes a payment" in api.get(f"topups/{other.pk}/refunds").json()["freezes"][0]
    assert error_of(api.post(f"topups/{other.pk}/refunds", {}), 409)["code"] == "refunds_frozen"
    assert not TopUpRefund.objects.exists()
    assert Api.of(make_organization("other")).get("disputes").json()["results"] == []


def test_staff_send_evidence_once_with_a_fresh_code(
    acme: Organization, double: StripeDouble, operator: Api, staff: User
) -> None:
    dispute_id = open_dispute(double, paid(double, acme, 2_500))
    refresh_dispute(dispute_id=dispute_id)
    (shown,) = operator.get("platform/disputes?state=open").json()["results"]
    assert (shown["organization"], shown["takes_evidence"], shown["evidence_sent_at"]) == ("acme", True, None)
    assert operator.get("platform/disputes?state=lost").json()["results"] == []
    path, body = f"platform/disputes/{dispute_id}/evidence", {"texts": {"uncategorized_text": "They used it."}}
    wrong = "000000" if code_of(staff) != "000000" else "111111"
    assert error_of(operator.post(path, body | {"code": wrong}), 403)["code"] == "second_factor_required"
    assert Dispute.objects.get().evidence_sent_at is None
    sent = operator.post(path, body | {"code": code_of(staff), "files": {"receipt": PDF}}).json()
    assert sent["takes_evidence"] is False and sent["evidence_sent_at"] is not None
    assert operator.get(f"platform/disputes/{dispute_id}").json() == sent
    kept = double.state.objects[dispute_id]["evidence"]
    assert kept["uncategorized_text"] == "They used it." and kept["receipt"].startswith("file_")


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 409, None),
        ({"texts": {"uncategorized_text": "x" * 20_001}}, 400, "uncategorized_text"),
        ({"texts": {"poem": "x"}}, 400, "poem"),
        ({"files": {"receipt": encode_base64url(b"MZ an executable")}}, 400, "receipt"),
        ({"files": {"receipt": "no base64!"}}, 400, "files.receipt"),
    ],
)
def test_bad_evidence_is_named_and_nothing_is_sent(
    acme: Organization,
    double: StripeDouble,
    operator: Api,
    staff: User,
    body: dict[str, Any],
    status: int,
    field: str | None,
) -> None:
    dispute_id = open_dispute(double, paid(double, acme, 2_500))
    refresh_dispute(dispute_id=dispute_id)
    answer = operator.post(f"platform/disputes/{dispute_id}/evidence", body | {"code": code_of(staff)})
    assert error_of(answer, status).get("field") == field
    assert Dispute.objects.get().evidence_sent_at is None and double.state.of_kind("file") == []


def test_only_staff_see_disputes_of_others(acme: Organization, double: StripeDouble, staff: User) -> None:
    dispute_id = open_dispute(double, paid(double, acme, 2_500))
    refresh_dispute(dispute_id=dispute_id)
    # Keys of an ordinary organization carry no staff rights, whoever made them.
    for api in (Api.of(acme), Api.of(make_organization("staffs-own", owner=staff))):
        for method, path in (("GET", ""), ("GET", f"/{dispute_id}"), ("POST", f"/{dispute_id}/evidence")):
            assert error_of(api.call(method, f"platform/disputes{path}"), 403)["code"] == "staff_only"
    error_of(Api().get("platform/disputes"), 401)
    assert Dispute.objects.get().evidence_sent_at is None
    assert Authenticator.objects.count() == 1


def test_an_unknown_dispute_is_not_found(acme: Organization, operator: Api, staff: User) -> None:
    for path in ("platform/disputes/dp_unknown", "platform/disputes/%00", f"platform/disputes/{uuid.uuid4()}"):
        error_of(operator.get(path), 404)
    body = {"code": code_of(staff), "texts": {"uncategorized_text": "x"}}
    error_of(operator.post("platform/disputes/dp_unknown/evidence", body), 404)
    assert not TopUp.objects.exists()
