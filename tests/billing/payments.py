"""Paid top-ups, predictions paid with them, refunds and disputes against the double, for the tests of money."""

from __future__ import annotations

import uuid
from typing import Any

from billing.disputes.services import refresh_dispute
from billing.integrity import find_discrepancies
from billing.ledger import get_account
from billing.models import Account, Dispute, LedgerTransaction, TopUp, TopUpRefund
from billing.pricing import NANO_PER_CENT, Price, TokenUsage
from billing.refunds import refund_top_up
from billing.selectors import platform_summary
from billing.services import refresh_top_up
from devstack.stripe_double import disputes
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.support import hold_request, place, settle
from tests.billing.top_ups import begin, pay

CENT = NANO_PER_CENT


def paid(double: StripeDouble, organization: Organization, cents: int = 2_500) -> TopUp:
    """A credited top-up; the double adds its `tax_percent`."""
    top_up = begin(organization, cents)
    pay(double, top_up)
    return refresh_top_up(top_up_id=top_up.pk)


def spend(customer: Organization, creator: Organization, nano_usd: int) -> uuid.UUID:
    """One settled prediction that costs so much; the creator gets 80 % of it."""
    price = Price(0, 0, 0, nano_usd)
    request = place(hold_request(customer, creator, price=price, amount_nano_usd=nano_usd))
    assert settle(request.prediction_id, TokenUsage(1, 0, 1)).cost == nano_usd
    return request.prediction_id


def refund(organization: Organization, top_up: TopUp, cents: int, **changes: Any) -> TopUpRefund:
    fields = {"organization": organization, "top_up_id": top_up.pk, "amount_cents": cents, "request_id": uuid.uuid4()}
    return refund_top_up(**(fields | changes))  # type: ignore[arg-type]


def open_dispute(double: StripeDouble, top_up: TopUp, cents: int | None = None) -> str:
    """Let the bank dispute a payment, or a part of it; return the dispute's id."""
    top_up.refresh_from_db()
    (charge,) = [one for one in double.state.of_kind("charge") if one["payment_intent"] == top_up.payment_intent_id]
    with double.turn():
        return str(disputes.open_dispute(double, charge, amount=cents)["id"])


def disputed(double: StripeDouble, top_up: TopUp, cents: int | None = None) -> Dispute:
    """A dispute that the platform knows of."""
    dispute = refresh_dispute(dispute_id=open_dispute(double, top_up, cents))
    assert dispute is not None
    return dispute


def decided(double: StripeDouble, dispute: Dispute, *, won: bool) -> Dispute:
    disputes.decide(double, dispute.pk, won=won)
    found = refresh_dispute(dispute_id=dispute.pk)
    assert found is not None
    return found


def nano(kind: Account.Kind, organization: Organization | None = None) -> int:
    """The balance of one account."""
    return Account.objects.get(pk=get_account(kind=kind, organization=organization).pk).posted


def entries(kind: str) -> list[tuple[str, int]]:
    """The entries of the one transaction of this kind, in the order of the chart."""
    found = LedgerTransaction.objects.get(kind=kind)
    return [(entry.account.kind, entry.amount) for entry in found.entries.select_related("account").order_by("id")]


def assert_books_agree() -> None:
    assert find_discrepancies() == []
    assert platform_summary().ledger_sum == 0
