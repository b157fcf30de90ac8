"""Stripe at its edges: tax, pages that are closed, events of every form. Each paid top-up is credited, exactly once."""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from typing import Any

import pytest
import stripe
from django.conf import settings
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing import tasks
from billing.errors import PaymentMismatch, PaymentProviderUnavailable
from billing.models import Incident, LedgerTransaction, StripeEvent, TopUp
from billing.selectors import wallet
from billing.services import cancel_top_up, refresh_top_up
from billing.stripe import stripe_gateway
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
    assert (wallet(organization).posted, top_up.tax_cents) == (25 * 10**9, 475)
    assert not Incident.objects.exists()


@pytest.mark.parametrize(("total", "tax"), [(2_975, 474), (2_975, 476), (2_500, 475), (2_025, -475)])
def test_a_total_that_is_not_amount_plus_tax_credits_nothing(
    double: StripeDouble, organization: Organization, total: int, tax: int
) -> None:
    top_up = begin(organization, 2_500)
    pay(double, top_up)
    session = double.state.objects[str(top_up.checkout_session_id)]
    session |= {"amount_total": total, "total_details": session["total_details"] | {"amount_tax": tax}}
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


def assert_noted_or_refused(double: StripeDouble, value: Any) -> None:
    before = StripeEvent.objects.count()
    status = post_signed(double, value)
    assert status in (200, 400), value
    if status == 400:
        assert StripeEvent.objects.count() == before


@pytest.mark.deep
@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(value=LIKE_AN_EVENT)
def test_a_signed_body_of_any_form_is_noted_or_refused_and_never_a_500(double: StripeDouble, value: Any) -> None:
    assert_noted_or_refused(double, value)


@pytest.mark.parametrize(
    "value",
    [
        {"id": "evt\x00", "object": "event", "type": "x", "data": {"object": {}}},
        {"id": "e" * 256, "object": "event", "type": "x", "data": {"object": {}}},
        {"id": "evt_1", "object": "v2.core.event", "type": "x", "related_object": {"id": "acct_1"}},
        {"id": 7, "object": ["event"], "type": None, "data": "text"},
    ],
)
def test_a_signed_body_of_an_odd_form_is_noted_or_refused_and_never_a_500(double: StripeDouble, value: Any) -> None:
    assert_noted_or_refused(double, value)


@pytest.mark.parametrize("body", ["[]", "null", '"text"', "17", "{", "", "{}"])
def test_a_signed_body_that_is_no_object_is_refused(double: StripeDouble, body: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(json, "dumps", lambda *_values, **_options: body)
    signed, signature = double.signed_webhook({})
    monkeypatch.undo()
    answer = Client().post(WEBHOOK, signed, content_type="application/json", headers={"stripe-signature": signature})
    assert answer.status_code == 400
    assert not StripeEvent.objects.exists()


# Retries --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The tasks that are put into the queue, with their arguments; nothing runs them by itself."""
    queued: list[tuple[Any, ...]] = []
    for task in (tasks.process_stripe_event, tasks.check_top_up):
        monkeypatch.setattr(task, "delay", lambda *arguments, task=task: queued.append((task, *arguments)))
    return queued


def run(queue: list[tuple[Any, ...]]) -> None:
    """Run what is queued, as a worker does: a task that fails is no reason to stop."""
    while queue:
        task, *arguments = queue.pop(0)
        with contextlib.suppress(PaymentProviderUnavailable):
            task(*arguments)


def let_time_pass() -> None:
    """Make everything that waits for its next turn due."""
    past = timezone.now() - timedelta(seconds=1)
    StripeEvent.objects.update(next_attempt_at=past)
    TopUp.objects.exclude(next_check_at=None).update(next_check_at=past)


def break_reads(double: StripeDouble, times: int) -> None:
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, method="GET", times=times))


def test_a_payment_is_credited_after_any_number_of_failed_retrievals(
    double: StripeDouble, organization: Organization, queue: list[tuple[Any, ...]]
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    for event in double.due_events():
        post(double, event)
        double.record_delivery(event["id"], delivered=True)
    break_reads(double, 10**6)
    for _turn in range(30):
        let_time_pass()
        for task in (tasks.catch_up_stripe_events, tasks.catch_up_top_ups):
            with contextlib.suppress(PaymentProviderUnavailable):
                task()
        run(queue)
    event = StripeEvent.objects.get(type="checkout.session.completed")
    assert event.attempts >= 30 and event.processed_at is None
    assert wallet(organization).posted == 0
    assert Incident.objects.filter(kind="stripe_event", subject=event.pk, resolved_at=None).count() == 1

    double.faults.requests.clear()
    let_time_pass()
    tasks.catch_up_stripe_events()
    run(queue)
    assert_credited_once(organization, top_up)
    assert not Incident.objects.filter(resolved_at=None).exists()


def test_a_payment_is_credited_although_every_event_about_it_is_lost(
    double: StripeDouble, organization: Organization, queue: list[tuple[Any, ...]]
) -> None:
    top_up = begin(organization)
    tasks.catch_up_top_ups()
    run(queue)
    pay(double, top_up)
    break_reads(double, 3)
    for _turn in range(2):
        let_time_pass()
        tasks.catch_up_top_ups()
        run(queue)
    assert not StripeEvent.objects.exists()
    assert_credited_once(organization, top_up)
    let_time_pass()
    tasks.catch_up_top_ups()
    assert queue == []


def test_retries_come_less_often_and_at_least_once_an_hour(
    double: StripeDouble, organization: Organization, queue: list[tuple[Any, ...]]
) -> None:
    top_up = begin(organization)
    waits = []
    for _turn in range(14):
        TopUp.objects.update(next_check_at=timezone.now() - timedelta(seconds=1))
        before = timezone.now()
        tasks.catch_up_top_ups()
        tasks.catch_up_top_ups()  # not due: nothing is queued twice
        top_up.refresh_from_db()
        assert top_up.next_check_at is not None
        waits.append(round((top_up.next_check_at - before) / timedelta(seconds=15)))
    assert len(queue) == 14
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, *[240] * 6]


def test_pages_that_nobody_pays_are_noticed_without_events(
    double: StripeDouble, organization: Organization, queue: list[tuple[Any, ...]]
) -> None:
    expired = begin(organization)
    double.state.objects[str(expired.checkout_session_id)]["expires_at"] = 1
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, times=3))
    for age in (0, 25):  # the answer to the second one's creation never came
        with contextlib.suppress(PaymentProviderUnavailable):
            begin(organization, 700 + age)
        double.faults.requests[:] = [Fault(FaultKind.SERVER_ERROR, times=3)]
    double.faults.requests.clear()
    TopUp.objects.filter(amount_cents=725).update(created_at=timezone.now() - timedelta(hours=25))
    tasks.catch_up_top_ups()
    run(queue)
    states = dict(TopUp.objects.values_list("amount_cents", "state"))
    assert states == {2_500: "expired", 700: "created", 725: "expired"}


def test_a_payment_of_another_amount_is_looked_at_by_a_person_and_not_asked_about_for_ever(
    double: StripeDouble, organization: Organization, queue: list[tuple[Any, ...]]
) -> None:
    top_up = begin(organization)
    pay(double, top_up)
    TopUp.objects.update(amount_cents=100_000)
    tasks.catch_up_top_ups()
    run(queue)
    let_time_pass()
    tasks.catch_up_top_ups()
    assert queue == []
    assert wallet(organization).posted == 0
    assert Incident.objects.get().kind == Incident.Kind.PAYMENT_MISMATCH


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
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, path="/expire"))
    with pytest.raises(PaymentProviderUnavailable):
        cancel_top_up(top_up_id=top_up.pk)
    top_up.refresh_from_db()
    assert top_up.state == TopUp.State.PENDING
    assert cancel_top_up(top_up_id=top_up.pk).state == TopUp.State.EXPIRED


def test_events_of_more_types_than_one_list_takes_are_all_found(
    double: StripeDouble, organization: Organization
) -> None:
    pay(double, begin(organization))
    names = [f"invoice.type_{number}" for number in range(25)]
    found = stripe_gateway().events.undelivered(types=[*names, "charge.updated"], since=0, limit=50)
    assert [event.type for event in found] == ["charge.updated"]
