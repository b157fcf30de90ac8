"""Stripe at its edges: tax, pages that are closed, events of every form. Each paid top-up is credited, exactly once."""

from __future__ import annotations

import json
from typing import Any

import pytest
import stripe
from django.conf import settings
from django.test import Client
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing.errors import PaymentMismatch, PaymentProviderUnavailable
from billing.models import Incident, LedgerTransaction, StripeEvent, TopUp
from billing.selectors import wallet
from billing.services import cancel_top_up, refresh_top_up
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from devstack.stripe_double.http_client import DoubleHTTPClient
from marketplace.accounts.models import Organization
from tests.billing.top_ups import WEBHOOK, assert_credited_once, begin, pay, post, work

pytestmark = pytest.mark.django_db


def post_signed(double: StripeDouble, value: Any) -> int:
    body, signature = double.signed_webhook(value)
    answer = Client().post(WEBHOOK, body, content_type="application/json", headers={"stripe-signature": signature})
    return int(answer.status_code)


# Tax ------------------------------------------------------------------------------------------------------------------


def test_tax_on_top_of_the_amount_does_not_block_the_credit_and_is_no_credit(
    double: StripeDouble, organization: Organization
) -> None:
    double.tax_percent = 19
    top_up = begin(organization, 2_500)
    pay(double, top_up)
    for event in double.due_events():
        post(double, event)
    work()
    assert_credited_once(organization, top_up)
    assert wallet(organization).posted == 25 * 10**9
    assert not Incident.objects.exists()


@pytest.mark.parametrize(("total", "tax"), [(2_975, 474), (2_975, 476), (2_500, 475), (2_025, -475)])
def test_a_total_that_is_not_amount_plus_tax_credits_nothing(
    double: StripeDouble, organization: Organization, total: int, tax: int
) -> None:
    top_up = begin(organization, 2_500)
    pay(double, top_up)
    session = double._state.objects[str(top_up.checkout_session_id)]
    session |= {"amount_total": total, "total_details": {"amount_tax": tax}}
    with pytest.raises(PaymentMismatch):
        refresh_top_up(top_up_id=top_up.pk)
    assert wallet(organization).posted == 0
    assert Incident.objects.get().kind == Incident.Kind.PAYMENT_MISMATCH


# Events ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["balance.available", "checkout.session.completed", "charge.updated"])
def test_an_event_about_an_object_without_an_id_is_noted_and_moves_nothing(double: StripeDouble, kind: str) -> None:
    event = {"id": "evt_no_id", "object": "event", "type": kind, "data": {"object": {"object": "balance"}}}
    assert post_signed(double, event) == 200
    work()
    row = StripeEvent.objects.get()
    assert (row.id, row.object_id, row.last_error) == ("evt_no_id", "", "")
    assert row.processed_at is not None
    assert not LedgerTransaction.objects.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
LIKE_AN_EVENT = st.fixed_dictionaries(
    {"object": st.just("event")},
    optional={
        "id": JSON,
        "type": JSON,
        "data": st.fixed_dictionaries({}, optional={"object": st.fixed_dictionaries({}, optional={"id": JSON})}) | JSON,
    },
)


@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(value=LIKE_AN_EVENT)
@example(value={"id": "evt\x00", "object": "event", "type": "x", "data": {"object": {}}})
@example(value={"id": "e" * 256, "object": "event", "type": "x", "data": {"object": {}}})
@example(value={"id": "evt_1", "object": "v2.core.event", "type": "x", "related_object": {"id": "acct_1"}})
def test_a_signed_body_of_any_form_is_noted_or_refused_and_never_a_500(double: StripeDouble, value: Any) -> None:
    before = StripeEvent.objects.count()
    status = post_signed(double, value)
    assert status in (200, 400), value
    if status == 400:
        assert StripeEvent.objects.count() == before


@pytest.mark.parametrize("body", ["[]", "null", '"text"', "17", "{", "", "{}"])
def test_a_signed_body_that_is_no_object_is_refused(double: StripeDouble, body: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(json, "dumps", lambda *_values, **_options: body)
    signed, signature = double.signed_webhook({})
    monkeypatch.undo()
    answer = Client().post(WEBHOOK, signed, content_type="application/json", headers={"stripe-signature": signature})
    assert answer.status_code == 400
    assert not StripeEvent.objects.exists()


# Cancelled pages ------------------------------------------------------------------------------------------------------


def test_a_cancelled_top_up_cannot_be_paid_any_more(double: StripeDouble, organization: Organization) -> None:
    top_up = begin(organization)
    assert cancel_top_up(top_up_id=top_up.pk).state == TopUp.State.EXPIRED
    pay(double, top_up)  # the customer still has the page open
    for event in double.due_events():
        post(double, event)
    work()
    assert cancel_top_up(top_up_id=top_up.pk).state == TopUp.State.EXPIRED
    assert wallet(organization).posted == 0
    client = stripe.StripeClient(settings.ENV.stripe_api_key, http_client=DoubleHTTPClient(double))
    assert client.v1.checkout.sessions.retrieve(str(top_up.checkout_session_id)).status == "expired"


def test_a_top_up_that_was_paid_before_it_was_cancelled_is_credited(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    assert cancel_top_up(top_up_id=top_up.pk).state == TopUp.State.CREDITED
    assert_credited_once(organization, top_up)


def test_a_page_that_stripe_could_not_be_asked_to_close_stays_open(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = begin(organization)
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, path="/expire", times=3))
    with pytest.raises(PaymentProviderUnavailable):
        cancel_top_up(top_up_id=top_up.pk)
    top_up.refresh_from_db()
    assert top_up.state == TopUp.State.PENDING
    assert cancel_top_up(top_up_id=top_up.pk).state == TopUp.State.EXPIRED
