"""Top-ups against the Stripe double, step by step: begin, pay, post the webhooks, let the worker work."""

from __future__ import annotations

from typing import Any

from django.test import Client

from billing import tasks
from billing.integrity import find_discrepancies
from billing.models import Account, LedgerTransaction, Outbox, StripeEvent, TopUp
from billing.pricing import NANO_PER_CENT
from billing.selectors import wallet
from billing.services import start_top_up
from devstack.stripe_double import checkout
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization

WEBHOOK = "/webhooks/stripe"


def begin(organization: Organization, amount_cents: int = 2_500) -> TopUp:
    return start_top_up(
        organization=organization,
        amount_cents=amount_cents,
        success_url="http://shop/back",
        cancel_url="http://shop/cancelled",
    )


def pay(double: StripeDouble, top_up: TopUp) -> None:
    assert top_up.checkout_session_id is not None
    checkout.pay(double, top_up.checkout_session_id)


def post(double: StripeDouble, event: dict[str, Any]) -> Any:
    body, signature = double.signed_webhook(event)
    return Client().post(WEBHOOK, body, content_type="application/json", headers={"stripe-signature": signature})


def work() -> None:
    """Process every noted event, as the Celery worker would."""
    for event_id in StripeEvent.objects.filter(processed_at=None).order_by("received_at").values_list("id", flat=True):
        tasks.process_stripe_event(event_id)


def balance(kind: Account.Kind) -> int:
    account = Account.objects.filter(kind=kind, organization=None).first()
    return account.posted if account else 0


def assert_credited_once(organization: Organization, top_up: TopUp) -> None:
    top_up.refresh_from_db()
    assert top_up.state == TopUp.State.CREDITED
    assert wallet(organization).posted == top_up.amount_cents * NANO_PER_CENT
    assert LedgerTransaction.objects.filter(kind="top_up").count() == 1
    assert Outbox.objects.filter(topic="top_up.credited").count() == 1
    assert find_discrepancies() == []
