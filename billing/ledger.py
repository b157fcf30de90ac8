"""The one place in Python that writes ledger transactions. The hot path writes its own, in migration 0020."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import IntegrityError, transaction

from billing.errors import InsufficientFunds, UnbalancedTransaction
from billing.models import Account, AccountKind, Entry, Incident, LedgerTransaction, Lot
from marketplace.accounts.models import Organization


@dataclass(frozen=True, slots=True)
class Line:
    """One entry to be written: a signed amount in nano-dollars; of customers' credit it names the lot."""

    account: Account
    amount: int
    lot: Lot | None = None


@cache
def lock_ranks() -> dict[str, int]:
    """Return the order in which kinds of accounts are locked. The chart of accounts changes with migrations alone."""
    return dict(AccountKind.objects.values_list("code", "rank"))


def get_account(*, kind: Account.Kind, organization: Organization | None = None) -> Account:
    """Return the account of this kind, opening it at first use. The platform's own accounts have no organization."""
    account, _created = Account.objects.get_or_create(kind=kind, organization=organization)
    return account


@transaction.atomic
def post_transaction(
    *,
    kind: LedgerTransaction.Kind,
    reference: str,
    lines: Iterable[Line] | Callable[[LedgerTransaction], Iterable[Line]],
    memo: str = "",
    corrects: LedgerTransaction | None = None,
) -> LedgerTransaction:
    """Write one zero-sum transaction. A second one with the same kind and reference raises IntegrityError.

    `lines` may be a function of the new transaction, for credit whose lot names it as its origin. Raises
    UnbalancedTransaction, and InsufficientFunds if a balance that must not be negative would become so.
    """
    row = LedgerTransaction(kind=kind, reference=reference, memo=memo, corrects=corrects)
    row.save(force_insert=True)
    entries = [line for line in (lines(row) if callable(lines) else lines) if line.amount != 0]
    if len(entries) < 2 or sum(line.amount for line in entries) != 0:
        raise UnbalancedTransaction(f"{kind} {reference}: {[line.amount for line in entries]}")
    # The hot path locks accounts in the same order.
    ranks = lock_ranks()
    entries.sort(key=lambda line: (ranks[line.account.kind], line.account.pk))
    try:
        with transaction.atomic():
            # One statement: the database refuses any that leaves the transaction unbalanced.
            Entry.objects.bulk_create(
                [Entry(transaction=row, account=line.account, lot=line.lot, amount=line.amount) for line in entries]
            )
    except IntegrityError as error:
        if "billing_account_never_overdrawn" not in str(error) and "billing_lot_not_negative" not in str(error):
            raise
        raise _insufficient(kind, reference, entries) from None
    return row


def _insufficient(kind: LedgerTransaction.Kind, reference: str, entries: list[Line]) -> InsufficientFunds:
    taken = [line for line in entries if line.amount < 0 and not line.account.may_be_negative]
    available = min(
        (account.available for account in Account.objects.filter(pk__in=[line.account.pk for line in taken])), default=0
    )
    needed = max((-line.amount for line in taken), default=0)
    message = f"{kind} {reference} takes {needed} nano-USD, and {available} nano-USD is available"
    return InsufficientFunds(available, needed, message)


def record_incident(*, kind: Incident.Kind, detail: dict[str, Any], subject: str = "") -> bool:
    """Open an incident for a person to resolve. Returns False if one of this kind and subject is already open."""
    _incident, created = Incident.objects.get_or_create(
        kind=kind, subject=subject, resolved_at=None, defaults={"detail": detail}
    )
    return created
