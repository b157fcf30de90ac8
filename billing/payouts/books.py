"""The ledger transactions of payouts, each booked once. Amounts are nano-dollars.

`payout_in_transit` is what was promised to the creator and has not arrived; `clearing` (negative) is what lies in
creators' accounts at Stripe between our transfer and their bank.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.db import connection

from billing.ledger import Line, get_account, post_transaction
from billing.models import Account, LedgerTransaction, Payout
from billing.pricing import NANO_PER_CENT
from marketplace.accounts.models import Organization

Kind = LedgerTransaction.Kind


def book_start(organization: Organization, reference: str, nano: int) -> LedgerTransaction:
    """Take a payout from the payable balance."""
    amounts = {Account.Kind.CREATOR_PAYABLE: -nano, Account.Kind.PAYOUT_IN_TRANSIT: nano}
    return _post(Kind.PAYOUT, reference, organization, amounts)


def book_transfer(payout: Payout, balance_transaction_id: str) -> LedgerTransaction:
    """Stripe moved the money from our balance to the creator's: `balance_transaction_id` is its line there."""
    nano = payout.amount_cents * NANO_PER_CENT
    amounts = {Account.Kind.CLEARING: -nano, Account.Kind.STRIPE_CASH: nano}
    return _post(Kind.PAYOUT_TRANSFER, str(payout.pk), payout.organization, amounts, memo=balance_transaction_id)


def book_arrival(payout: Payout) -> LedgerTransaction:
    """Settle the promise: the bank has the money."""
    nano = payout.amount_cents * NANO_PER_CENT
    amounts = {Account.Kind.PAYOUT_IN_TRANSIT: -nano, Account.Kind.CLEARING: nano}
    return _post(Kind.PAYOUT_PAID, str(payout.pk), payout.organization, amounts, memo=payout.bank_payout_id or "")


def book_late_failure(payout: Payout) -> LedgerTransaction:
    """Undo an arrival that Stripe had reported: the bank sent the money back to the creator's account at Stripe."""
    nano = payout.amount_cents * NANO_PER_CENT
    amounts = {Account.Kind.PAYOUT_IN_TRANSIT: nano, Account.Kind.CLEARING: -nano}
    return _post(Kind.PAYOUT_FAILED, str(payout.pk), payout.organization, amounts, memo=payout.bank_payout_id or "")


def book_return(payout: Payout, balance_transaction_id: str | None) -> LedgerTransaction:
    """Give a payout back to the payable balance; None: its money had never left the platform."""
    nano = payout.amount_cents * NANO_PER_CENT
    amounts = {Account.Kind.PAYOUT_IN_TRANSIT: -nano, Account.Kind.CREATOR_PAYABLE: nano}
    if balance_transaction_id is not None:
        amounts |= {Account.Kind.CLEARING: nano, Account.Kind.STRIPE_CASH: -nano}
    memo = balance_transaction_id or ""
    return _post(Kind.PAYOUT_RETURNED, str(payout.pk), payout.organization, amounts, memo=memo)


def book_release(organization: Organization, reference: str, nano: int, memo: str) -> LedgerTransaction:
    """Move matured earnings from the reserve to the payable balance."""
    amounts = {Account.Kind.CREATOR_RESERVE: -nano, Account.Kind.CREATOR_PAYABLE: nano}
    return _post(Kind.RESERVE_RELEASE, reference, organization, amounts, memo=memo)


def book_netting(
    organization: Organization, reference: str, *, from_reserve: int, from_payable: int
) -> LedgerTransaction:
    """Set earnings against what the organization owes the platform."""
    amounts = {
        Account.Kind.CREATOR_RESERVE: -from_reserve,
        Account.Kind.CREATOR_PAYABLE: -from_payable,
        Account.Kind.RECEIVABLE: from_reserve + from_payable,
    }
    return _post(Kind.NETTING, reference, organization, amounts)


def lock_balances(organization: Organization, *kinds: Account.Kind) -> list[int]:
    """Lock accounts of `organization` in the order of the chart, opening those that are missing; return balances."""
    accounts = [get_account(kind=kind, organization=organization) for kind in kinds]
    with connection.cursor() as cursor:
        for account in accounts:
            cursor.execute("SELECT billing_lock_account(%s)", [account.pk])
    found = dict(Account.objects.filter(pk__in=[account.pk for account in accounts]).values_list("pk", "posted"))
    return [found[account.pk] for account in accounts]


def _post(
    kind: LedgerTransaction.Kind,
    reference: str,
    organization: Organization,
    amounts: Mapping[Account.Kind, int],
    memo: str = "",
) -> LedgerTransaction:
    platforms = (Account.Kind.CLEARING, Account.Kind.STRIPE_CASH)
    lines = [
        Line(get_account(kind=account, organization=None if account in platforms else organization), amount)
        for account, amount in amounts.items()
    ]
    return post_transaction(kind=kind, reference=reference, lines=lines, memo=memo)
