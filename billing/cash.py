"""Cash at Stripe: each balance transaction there, and each fee, is booked once under its id. Amounts are cents."""

from __future__ import annotations

from django.db import transaction

from billing.ledger import Line, get_account, post_transaction
from billing.locks import lock_accounts, lock_stripe_cash
from billing.models import Account, LedgerTransaction
from billing.pricing import NANO_PER_CENT
from billing.stripe.charges import StripeFee


def record_stripe_fee(*, fee: StripeFee) -> LedgerTransaction | None:
    """Book Stripe's fee, once. The platform bears it: the customer's credit is untouched.

    Returns None when the fee is zero or already booked.
    """
    kind = LedgerTransaction.Kind.STRIPE_FEE
    with transaction.atomic():
        cash = lock_stripe_cash(get_account(kind=Account.Kind.STRIPE_CASH))
        # Read under the lock of the account, so that two deliveries at once book one fee.
        if (
            fee.fee_cents == 0
            or LedgerTransaction.objects.filter(kind=kind, reference=fee.balance_transaction_id).exists()
        ):
            return None
        amount = fee.fee_cents * NANO_PER_CENT
        return post_transaction(
            kind=kind,
            reference=fee.balance_transaction_id,
            lines=[Line(cash, amount), Line(get_account(kind=Account.Kind.STRIPE_FEES), -amount)],
        )


def record_movement(*, balance_transaction_id: str, amount_cents: int, memo: str) -> LedgerTransaction | None:
    """Book money that left the balance at Stripe (negative) or came back to it, against `clearing`, once.

    `clearing` holds it until the refund or dispute of `memo` says who bears it. Returns None if it is booked already.
    """
    kind = LedgerTransaction.Kind.STRIPE_MOVEMENT
    clearing, cash = get_account(kind=Account.Kind.CLEARING), get_account(kind=Account.Kind.STRIPE_CASH)
    with transaction.atomic():
        lock_accounts([clearing, cash])  # two deliveries at once book it once
        booked = LedgerTransaction.objects.filter(kind=kind, reference=balance_transaction_id)
        if amount_cents == 0 or booked.exists():
            return None
        amount = amount_cents * NANO_PER_CENT
        return post_transaction(
            kind=kind,
            reference=balance_transaction_id,
            lines=[Line(clearing, amount), Line(cash, -amount)],
            memo=memo,
        )
