"""Row locks of this app; `marketplace.accounts.locks` states the order of all locks.

The hot path takes its locks inside the SQL functions of migration 0020, in the same order. The application's database
role may not change rows of the ledger, and so not lock them either: functions do (migration 0010).
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import connection

from billing.ledger import lock_ranks
from billing.models import (
    Account,
    AutoTopUp,
    BudgetNode,
    Dispute,
    LedgerCheckpoint,
    LedgerTransaction,
    Payout,
    TopUp,
    TopUpRefund,
)


def lock_top_up(top_up_id: UUID) -> TopUp | None:
    """Lock the top-up with its organization loaded: events about one payment take turns."""
    return TopUp.objects.select_for_update().select_related("organization").filter(pk=top_up_id).first()


def lock_auto_top_up(organization_id: UUID) -> AutoTopUp | None:
    """Lock the organization's automatic top-up: one payment is begun at a time."""
    locked = AutoTopUp.objects.select_for_update(of=("self",)).select_related("card", "organization")
    return locked.filter(pk=organization_id).first()


def lock_payout(payout_id: UUID) -> Payout:
    """Lock the payout with its organization loaded: what Stripe says about one payout takes turns."""
    locked = Payout.objects.select_for_update(of=("self",)).select_related("organization")
    return locked.get(pk=payout_id)


def lock_refund(refund_id: UUID) -> TopUpRefund | None:
    """Lock the refund and its top-up: what Stripe says about one payment takes turns."""
    top_up_id = TopUpRefund.objects.filter(pk=refund_id).values_list("top_up_id", flat=True).first()
    if top_up_id is None or lock_top_up(top_up_id) is None:
        return None
    locked = TopUpRefund.objects.select_for_update(of=("self",)).select_related("top_up__organization")
    return locked.get(pk=refund_id)


def lock_dispute(dispute_id: str) -> Dispute | None:
    """Lock the dispute; its top-up is locked by the caller."""
    locked = Dispute.objects.select_for_update(of=("self",)).select_related("top_up__organization")
    return locked.filter(pk=dispute_id).first()


def lock_ledger_transaction(transaction_id: int) -> LedgerTransaction:
    """Lock the transaction that is about to be corrected, so that its corrections take turns."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_lock_transaction(%s)", [transaction_id])
    return LedgerTransaction.objects.get(pk=transaction_id)


def lock_account(account: Account) -> Account:
    """Lock an account and return its present balance: what is read of its lots does not change meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_lock_account(%s)", [account.pk])
    return Account.objects.get(pk=account.pk)


def lock_accounts(accounts: Iterable[Account]) -> dict[int, Account]:
    """Lock accounts in the order of the chart, and return their present balances by id."""
    ranks = lock_ranks()
    ordered = sorted({one.pk: one for one in accounts}.values(), key=lambda one: (ranks[one.kind], one.pk))
    with connection.cursor() as cursor:
        for account in ordered:
            cursor.execute("SELECT billing_lock_account(%s)", [account.pk])
    return Account.objects.in_bulk([account.pk for account in ordered])


def lock_stripe_cash(account: Account) -> Account:
    """Lock the platform's account at Stripe: two deliveries of one fee at once book it once."""
    return lock_account(account)


def lock_budget_branch(node: BudgetNode) -> None:
    """Lock a node of the tree of budgets and all below it, from the root down, as the hot path does."""
    branch = BudgetNode.objects.filter(organization_id=node.organization_id, path__contains=[node.pk])
    list(branch.select_for_update(no_key=True).order_by("path__len", "id").values_list("id", flat=True))


def lock_ledger_checkpoint() -> LedgerCheckpoint:
    """Lock how far the charges were checked, so that checks take turns."""
    LedgerCheckpoint.objects.bulk_create([LedgerCheckpoint(pk=1)], ignore_conflicts=True)
    return LedgerCheckpoint.objects.select_for_update().get(pk=1)
