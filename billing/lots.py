"""Credit as lots: depositing, drawing and expiring it. Amounts are nano-dollars.

A lot belongs to one account of customers' credit. Every entry on such an account names the lot that it fills or draws.
"""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

from django.db import connection

from billing.ledger import Line, get_account, post_transaction
from billing.models import Account, LedgerTransaction, Lot
from marketplace.accounts.models import Organization

LOTS_AT_ONCE = 500


def deposit(
    *,
    organization: Organization,
    amount_nano_usd: int,
    source: Account.Kind,
    lot_kind: Lot.Kind,
    kind: LedgerTransaction.Kind,
    reference: str,
    memo: str = "",
    expires_at: datetime | None = None,
) -> LedgerTransaction:
    """Credit an organization from one of the platform's accounts, as a lot of its own. Paid credit never expires.

    A second deposit with the same kind and reference raises IntegrityError.
    """
    wallet = get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=organization)

    def lines(row: LedgerTransaction) -> list[Line]:
        lot = Lot.objects.create(account=wallet, kind=lot_kind, transaction=row, expires_at=expires_at)
        return [Line(wallet, amount_nano_usd, lot), Line(get_account(kind=source), -amount_nano_usd)]

    return post_transaction(kind=kind, reference=reference, lines=lines, memo=memo)


def draw(account: Account, amount: int, *, only: Lot | None = None) -> list[Line]:
    """Return the lines that take `amount` from the account's lots, in the order in which credit is spent.

    With `only`, all of it comes from that lot. Call it under the lock of the account (`locks.lock_account`), in the
    database transaction that writes the lines. Lots that do not suffice give less: the caller checks what is there.
    """
    if only is not None:
        rest = Lot.objects.values_list("remaining", flat=True).get(pk=only.pk)
        return [Line(account, -min(amount, rest), only)] if min(amount, rest) > 0 else []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT lot_id, amount FROM billing_draw_lots(%s::bigint[], %s::uuid[], %s::bigint[])",
            [[account.pk], [uuid4()], [amount]],
        )
        drawn = cursor.fetchall()
    lots = Lot.objects.in_bulk([lot for lot, _amount in drawn])
    return [Line(account, -taken, lots[lot]) for lot, taken in drawn]


def expire_lots() -> int:
    """Take what is left of expired promotional credit, but for what open holds have set aside.

    Returns how many lots were drawn. What is held now is taken by a later call.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_expire_lots(%s)", [LOTS_AT_ONCE])
        (taken,) = cursor.fetchone()
    return int(taken)
