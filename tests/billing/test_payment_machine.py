"""Any sequence of top-ups, predictions, refunds and disputes agrees with a model of plain dicts, however the events of
Stripe arrive: twice, in another order, late, forged, and again long after."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
import stripe
from django.conf import settings as django_settings
from django.db import connection
from django.test import Client
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from billing.disputes.services import take_what_came_back
from billing.errors import AmountNotRefundable, RefundsFrozen
from billing.models import Account, StripeEvent, TopUp, TopUpRefund
from billing.reconciliation import reconcile
from billing.refunds import advance_refund, refundable_cents
from billing.selectors import wallet
from billing.services import release_hold_sync
from billing.stripe import stripe_gateway
from devstack.stripe_double import disputes, refunds
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from devstack.stripe_double.http_client import DoubleHTTPClient
from tests.billing.payment_model import CENT, TAX_PERCENT, Books, Payment
from tests.billing.payments import assert_books_agree, nano, open_dispute, refund, spend
from tests.billing.support import hold_request, make_organization, place
from tests.billing.top_ups import WEBHOOK, begin, pay, post, work

Kind = Account.Kind
STEPS = 20
FAULTS = (None, FaultKind.DROP_BEFORE_COMMIT, FaultKind.DROP_AFTER_COMMIT, FaultKind.RATE_LIMIT)


class Payments(RuleBasedStateMachine):
    """Two customers and two creators. Each fact at Stripe is followed by its events, mixed with copies of old ones."""

    payments = Bundle("payments")
    holds = Bundle("holds")
    sent = Bundle("sent")
    disputed = Bundle("disputed")

    @initialize()
    def start(self) -> None:
        self.double = StripeDouble(
            api_key=django_settings.ENV.stripe_api_key, webhook_secret=django_settings.ENV.stripe_webhook_secret
        )
        stripe.RequestsClient = lambda **options: DoubleHTTPClient(self.double)  # type: ignore[assignment,misc]
        stripe_gateway.cache_clear()
        self.double.tax_percent = TAX_PERCENT
        self.customers = [make_organization() for _ in range(2)]
        self.creators = sorted((make_organization() for _ in range(2)), key=lambda one: one.pk)
        self.model = Books()
        self.top_ups: dict[int, TopUp] = {}  # by the model's payment
        self.old: list[Any] = []
        self.before = {kind: nano(kind) for kind in (Kind.PLATFORM_REVENUE, Kind.LOSSES, Kind.TAX, Kind.CLEARING)}
        self.cash_before, self.fees_before = nano(Kind.STRIPE_CASH), nano(Kind.STRIPE_FEES)

    def deliver(self, seed: int) -> None:
        """Post the new events and copies of old ones in any order; keep some back, whose object another one names."""
        chance = random.Random(seed)
        events = self.double.due_events()
        for event in events:
            self.double.record_delivery(event["id"], delivered=True)
        late = {one["id"] for one in events if one["type"].endswith(("updated", "succeeded")) and chance.random() < 0.5}
        batch = [event for event in events if event["id"] not in late] * chance.randint(1, 2)
        batch += chance.sample(self.old, min(len(self.old), 3))
        chance.shuffle(batch)
        for event in batch:
            post(self.double, event)
        StripeEvent.objects.filter(pk__in=[event["id"] for event in chance.sample(batch, len(batch) // 2)]).update(
            processed_at=None  # killed after its work, before it noted that
        )
        work()
        self.old += events

    @rule(target=payments, customer=st.integers(0, 1), cents=st.integers(100, 2_000), seed=st.integers(0, 99))
    def top_up(self, customer: int, cents: int, seed: int) -> Payment:
        top_up = begin(self.customers[customer], cents)
        pay(self.double, top_up)
        self.deliver(seed)
        payment = self.model.top_up(customer, cents)
        self.top_ups[id(payment)] = top_up
        top_up.refresh_from_db()
        assert (top_up.state, top_up.tax_cents) == (TopUp.State.CREDITED, payment.tax)
        return payment

    @rule(customer=st.integers(0, 1), creator=st.integers(0, 1), nano_usd=st.integers(1, 999) | st.integers(1, 10**10))
    def predict(self, customer: int, creator: int, nano_usd: int) -> None:
        if nano_usd <= self.model.available(customer):
            spend(self.customers[customer], self.creators[creator], nano_usd)
            self.model.spend(customer, creator, nano_usd)

    @rule(target=holds, customer=st.integers(0, 1), nano_usd=st.integers(1, 10**10))
    def hold(self, customer: int, nano_usd: int) -> tuple[int, uuid.UUID, int] | None:
        if nano_usd > self.model.available(customer):
            return None
        request = place(hold_request(self.customers[customer], self.creators[0], amount_nano_usd=nano_usd))
        self.model.held[customer] += nano_usd
        return customer, request.prediction_id, nano_usd

    @rule(held=holds)
    def release(self, held: tuple[int, uuid.UUID, int] | None) -> None:
        if held is not None and release_hold_sync(prediction_id=held[1], reason="test"):
            self.model.held[held[0]] -= held[2]

    @rule(
        target=sent,
        payment=payments,
        cents=st.integers(1, 2_000),
        fault=st.sampled_from(FAULTS),
        seed=st.integers(0, 99),
    )
    def refund(
        self, payment: Payment, cents: int, fault: FaultKind | None, seed: int
    ) -> tuple[Payment, TopUpRefund] | None:
        top_up, customer = self.top_ups[id(payment)], self.customers[payment.customer]
        count = TopUpRefund.objects.count()
        if self.model.has_open_dispute(payment.customer) or cents > self.model.refundable(payment):
            with pytest.raises((RefundsFrozen, AmountNotRefundable)):
                refund(customer, top_up, cents)
            assert TopUpRefund.objects.count() == count
            return None
        self.double.faults.requests = [] if fault is None else [Fault(fault, "/v1/refunds", times=3)]
        found = refund(customer, top_up, cents)
        assert found.state == (TopUpRefund.State.REQUESTED if fault else found.state)
        self.double.faults.requests = []
        TopUpRefund.objects.filter(pk=found.pk).update(checks=1)
        found = advance_refund(refund_id=found.pk)
        tax = self.model.refund(payment, cents)
        assert found.tax_cents == tax
        if found.state == TopUpRefund.State.FAILED:  # Stripe refunds no charge with a dispute that was lost
            assert any(one.payment is payment and one.state == "lost" for one in self.model.disputes.values())
            self.model.refund_failed(payment, cents, tax)
        self.deliver(seed)
        return (payment, found) if found.state == TopUpRefund.State.SENT else None

    @rule(refunded=sent, seed=st.integers(0, 99))
    def send_back(self, refunded: tuple[Payment, TopUpRefund] | None, seed: int) -> None:
        if refunded is None:
            return
        payment, found = refunded
        found.refresh_from_db()
        if found.state != TopUpRefund.State.SENT:
            return
        assert found.stripe_refund_id is not None
        refunds.fail(self.double, found.stripe_refund_id)
        self.deliver(seed)
        self.model.refund_failed(payment, found.amount_cents, found.tax_cents)

    @rule(target=disputed, payment=payments, cents=st.integers(1, 2_400), seed=st.integers(0, 99))
    def dispute(self, payment: Payment, cents: int, seed: int) -> str:
        cents = min(cents, payment.cents + payment.tax)
        name = open_dispute(self.double, self.top_ups[id(payment)], cents)
        self.deliver(seed)
        self.model.open_dispute(name, payment, cents)
        return name

    @rule(name=disputed, won=st.booleans(), seed=st.integers(0, 99))
    def decide(self, name: str, won: bool, seed: int) -> None:
        if self.model.disputes[name].state != "open":
            return
        disputes.decide(self.double, name, won=won)
        self.deliver(seed)
        if won:
            self.model.win(name)
        else:
            self.model.lose(name)

    @rule()
    def take(self) -> None:
        take_what_came_back()
        for name in sorted(self.model.disputes):
            self.model.freeze(name)
            self.model.recover(name)

    @rule()
    def forge(self) -> None:
        if self.old:
            body, signature = self.double.signed_webhook(self.old[-1])
            forged = body.replace(b"evt_", b"evt_forged")
            answer = Client().post(
                WEBHOOK, forged, content_type="application/json", headers={"stripe-signature": signature}
            )
            assert answer.status_code == 400
            assert not StripeEvent.objects.filter(pk__startswith="evt_forged").exists()

    @rule()
    def reconcile(self) -> None:
        outcome = reconcile()
        assert (outcome.waiting, outcome.incidents) == (0, 0)

    @invariant()
    def the_books_agree_with_the_model(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what a commit would check
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        assert_books_agree()
        model = self.model
        for number, organization in enumerate(self.customers):
            found = wallet(organization)
            assert (found.posted, found.held) == (model.posted(number), model.held[number])
            assert nano(Kind.DISPUTE, organization) == model.under_dispute(number)
        for number, organization in enumerate(self.creators):
            assert nano(Kind.CREATOR_RESERVE, organization) == model.reserve[number]
            assert nano(Kind.RECEIVABLE, organization) == -model.owed[number]
        found = {kind: nano(kind) - before for kind, before in self.before.items()}
        assert found == {
            Kind.PLATFORM_REVENUE: model.revenue,
            Kind.LOSSES: model.losses,
            Kind.TAX: model.tax,
            Kind.CLEARING: model.clearing,
        }
        moved = self.double.state.of_kind("balance_transaction")
        assert self.cash_before - nano(Kind.STRIPE_CASH) == sum(one["net"] for one in moved) * CENT
        assert self.fees_before - nano(Kind.STRIPE_FEES) == sum(one["fee"] for one in moved) * CENT
        for payment in model.payments:
            assert refundable_cents(TopUp.objects.get(pk=self.top_ups[id(payment)].pk)) == model.refundable(payment)


@pytest.mark.django_db
@pytest.mark.parametrize("examples", [2, pytest.param(6, marks=pytest.mark.deep)])
def test_any_sequence_of_payments_and_events_agrees_with_a_plain_model(
    monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    monkeypatch.setattr(stripe, "RequestsClient", None)  # the machine sets it, and this test takes it back
    try:
        run_state_machine_as_test(
            Payments,
            settings=settings(
                max_examples=examples,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        stripe_gateway.cache_clear()
