"""The one place in Python that writes ledger transactions. The hot path writes its own, in migration 0004."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from billing.errors import InsufficientFunds, UnbalancedTransaction
from billing.models import Account, Entry, Incident, LedgerTransaction
from marketplace.accounts.models import Organization

_LOCK_RANK = {kind.value: rank for rank, kind in enumerate(Account.Kind)}


def get_account(*, kind: Account.Kind, organization: Organization | None = None) -> Account:
    """Return the account of this kind, opening it at first use. The platform's own accounts have no organization."""
    account, _created = Account.objects.get_or_create(kind=kind, organization=organization)
    return account


@transaction.atomic
def post_transaction(
    *,
    kind: LedgerTransaction.Kind,
    reference: str,
    amounts: dict[Account, int],
    memo: str = "",
    reverses: LedgerTransaction | None = None,
) -> LedgerTransaction:
    """Write one zero-sum transaction. A second one with the same kind and reference raises IntegrityError.

    Raises UnbalancedTransaction, and InsufficientFunds if a customer's available credit would become negative.
    """
    lines = [(account, amount) for account, amount in amounts.items() if amount != 0]
    if len(lines) < 2 or sum(amount for _account, amount in lines) != 0:
        raise UnbalancedTransaction(f"{kind} {reference}: {[amount for _account, amount in lines]}")
    # The hot path locks accounts in the same order.
    lines.sort(key=lambda line: (_LOCK_RANK[line[0].kind], line[0].pk))
    row = LedgerTransaction(kind=kind, reference=reference, memo=memo, reverses=reverses)
    row.save(force_insert=True)
    try:
        with transaction.atomic():
            # One statement: the database refuses any that leaves the transaction unbalanced.
            Entry.objects.bulk_create(
                [Entry(transaction=row, account=account, amount=amount) for account, amount in lines]
            )
    except IntegrityError as error:
        if "billing_account_never_overdrawn" not in str(error):
            raise
        available = min(
            account.available
            for account in Account.objects.filter(pk__in=[account.pk for account, amount in lines if amount < 0])
            if account.kind == Account.Kind.CUSTOMER_CREDIT
        )
        needed = max(-amount for _account, amount in lines)
        message = f"{kind} {reference} takes {needed} nano-USD, and {available} nano-USD is available"
        raise InsufficientFunds(available, needed, message) from None
    return row


def record_incident(*, kind: Incident.Kind, detail: dict[str, Any], subject: str = "") -> bool:
    """Open an incident for a person to resolve. Returns False if one of this kind and subject is already open."""
    _incident, created = Incident.objects.get_or_create(
        kind=kind, subject=subject, resolved_at=None, defaults={"detail": detail}
    )
    return created
