"""Refunds, disputes and predictions at once: credit goes one way, and nothing waits in a circle."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from billing import tasks
from billing.disputes.services import refresh_dispute
from billing.errors import AmountNotRefundable, InsufficientFunds, RefundsFrozen
from billing.models import Account, LedgerTransaction, StripeEvent, TopUpRefund
from billing.selectors import wallet
from devstack.stripe_double import disputes, refunds
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.payments import CENT, assert_books_agree, nano, open_dispute, paid, refund, spend
from tests.billing.support import hold_request, make_organization, place
from tests.billing.top_ups import post

pytestmark = pytest.mark.django_db(transaction=True)
Kind = Account.Kind


def at_once(calls: list[Callable[[], Any]], workers: int = 6) -> list[Any]:
    """Run calls on connections of their own; return answers, and refusals as values."""

    def run(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (InsufficientFunds, AmountNotRefundable, RefundsFrozen) as refusal:
            return type(refusal)
        finally:
            connection.close()

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, calls))


def test_refunds_and_holds_never_use_the_same_credit(double: StripeDouble, organization: Organization) -> None:
    top_up, creator = paid(double, organization, 1_000), make_organization()
    requests = [hold_request(organization, creator, amount_nano_usd=100 * CENT) for _ in range(12)]
    calls: list[Callable[[], Any]] = []
    for request in requests:
        calls += [lambda request=request: place(request), lambda: refund(organization, top_up, 100)]
    answers = at_once(calls)
    sent = [one for one in answers if isinstance(one, TopUpRefund)]
    held = wallet(organization).held // (100 * CENT)
    assert len(sent) + held == 10 and {one.state for one in sent} == {"sent"}
    assert wallet(organization).available == 0
    assert sum(one["amount"] for one in double.state.of_kind("refund")) == len(sent) * 100
    assert_books_agree()


def test_the_same_request_at_once_is_one_refund(double: StripeDouble, organization: Organization) -> None:
    top_up, request_id = paid(double, organization, 1_000), uuid.uuid4()
    answers = at_once([lambda: refund(organization, top_up, 300, request_id=request_id)] * 6)
    assert {one.pk for one in answers} == {request_id}
    assert TopUpRefund.objects.get().state == TopUpRefund.State.SENT
    assert len(double.state.of_kind("refund")) == 1
    assert Counter(LedgerTransaction.objects.values_list("kind", flat=True))["stripe_movement"] == 1
    assert wallet(organization).posted == 700 * CENT
    assert_books_agree()


def test_a_dispute_and_refunds_at_once_give_back_no_more_than_was_paid(
    double: StripeDouble, organization: Organization
) -> None:
    double.tax_percent = 19
    top_up = paid(double, organization, 1_000)
    dispute_id = open_dispute(double, top_up, 500)
    calls: list[Callable[[], Any]] = [lambda: refund(organization, top_up, 200)] * 4
    answers = at_once([*calls, lambda: refresh_dispute(dispute_id=dispute_id), *calls])
    assert RefundsFrozen in answers
    assert all(one.state == "failed" for one in answers if isinstance(one, TopUpRefund))  # Stripe knew of the dispute
    tasks.take_disputed_credit()
    assert nano(Kind.DISPUTE, organization) == 420 * CENT
    assert wallet(organization).posted == 580 * CENT
    assert nano(Kind.CLEARING) == -500 * CENT
    assert_books_agree()


def test_workers_with_all_events_of_refunds_and_disputes_at_once_book_each_once(
    double: StripeDouble, organization: Organization
) -> None:
    double.tax_percent = 19
    first, second, creator = paid(double, organization), paid(double, organization), make_organization()
    spend(organization, creator, 2_600 * CENT)
    found = refund(organization, second, 1_000)
    assert found.stripe_refund_id is not None
    refunds.fail(double, found.stripe_refund_id)
    lost, won = open_dispute(double, first), open_dispute(double, second, 700)
    disputes.decide(double, lost, won=False)
    disputes.decide(double, won, won=True)
    for event in double.due_events():
        post(double, event)
    events = list(StripeEvent.objects.values_list("id", flat=True)) * 2
    at_once([lambda event_id=event_id: tasks.process_stripe_event(event_id) for event_id in events])
    kinds = Counter(LedgerTransaction.objects.values_list("kind", flat=True))
    assert (kinds["stripe_movement"], kinds["dispute_lost"]) == (5, 1)
    assert kinds["dispute_won"] == kinds["dispute_frozen"]  # nothing is left to freeze once the loss was set off
    assert (kinds["refund_returned"], kinds["stripe_fee"], kinds["top_up"]) == (1, 4, 2)
    assert nano(Kind.CLEARING) == nano(Kind.DISPUTE, organization) == 0
    assert StripeEvent.objects.filter(processed_at=None).count() == 0
    moved = double.state.of_kind("balance_transaction")
    assert -nano(Kind.STRIPE_CASH) == sum(one["net"] for one in moved) * CENT
    assert_books_agree()
