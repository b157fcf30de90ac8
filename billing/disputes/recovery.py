"""Credit that comes back into a payment that was lost makes good the loss. Amounts are nano-dollars.

All credit in the lot of such a payment came back after the loss: from a correction, a hold, a refund that failed, or
another dispute that was won. It is divided among those who bore the loss, in proportion to what they still bear of it.
"""

from __future__ import annotations

from uuid import UUID

from django.db.models import Sum

from billing.ledger import Line, get_account, post_transaction
from billing.locks import lock_account
from billing.models import Account, Dispute, Entry, LedgerTransaction
from billing.refunds import lot_of
from marketplace.accounts.models import Organization

_Kind = LedgerTransaction.Kind


def recover(dispute: Dispute) -> int:
    """Return a lost dispute's credit that came back to those who bore its loss. Returns how much.

    Call it under the lock of the top-up.
    """
    lot = lot_of(dispute.top_up)
    if lot is None:
        return 0
    organization = dispute.top_up.organization
    wallet = lock_account(get_account(kind=Account.Kind.CUSTOMER_CREDIT, organization=organization))
    lot.refresh_from_db()
    earlier = _recovered(dispute)
    borne = _borne(dispute, earlier)
    amount = min(sum(borne.values()), lot.remaining, wallet.available)
    if amount <= 0:
        return 0
    payees = Organization.objects.in_bulk([payee for payee in borne if payee is not None])
    post_transaction(
        kind=_Kind.DISPUTE_RECOVERED,
        reference=f"{dispute.pk}:{-sum(_on_wallet(one) for one in earlier)}",
        lines=[
            Line(wallet, -amount, lot),
            *(
                Line(
                    get_account(kind=Account.Kind.LOSSES)
                    if payee is None
                    else get_account(kind=Account.Kind.CREATOR_RESERVE, organization=payees[payee]),
                    share,
                )
                for payee, share in _divided(amount, borne).items()
            ),
        ],
    )
    return amount


def _recovered(dispute: Dispute) -> list[LedgerTransaction]:
    found = LedgerTransaction.objects.filter(kind=_Kind.DISPUTE_RECOVERED, reference__startswith=f"{dispute.pk}:")
    return list(found)


def _on_wallet(transaction: LedgerTransaction) -> int:
    entries = transaction.entries.filter(account__kind=Account.Kind.CUSTOMER_CREDIT)
    return int(entries.aggregate(total=Sum("amount", default=0))["total"])


def _borne(dispute: Dispute, earlier: list[LedgerTransaction]) -> dict[UUID | None, int]:
    """Return what each payee, and the platform (None), still bears of the loss."""
    lost = LedgerTransaction.objects.get(kind=_Kind.DISPUTE_LOST, reference=dispute.pk)
    bearers = (
        Account.Kind.CREATOR_RESERVE,
        Account.Kind.CREATOR_PAYABLE,
        Account.Kind.RECEIVABLE,
        Account.Kind.LOSSES,
    )
    entries = Entry.objects.filter(transaction__in=[lost, *earlier], account__kind__in=bearers)
    sums = entries.values_list("account__organization").annotate(total=Sum("amount"))
    return {payee: -total for payee, total in sums if total < 0}


def _divided(amount: int, borne: dict[UUID | None, int]) -> dict[UUID | None, int]:
    """Divide by largest remainder; of equal ones the payee with the smaller id is first, and the platform last."""
    whole = sum(borne.values())
    shares = {payee: part * amount // whole for payee, part in borne.items()}
    turns = sorted(borne, key=lambda payee: (-(borne[payee] * amount % whole), payee is None, str(payee)))
    for payee in turns[: amount - sum(shares.values())]:
        shares[payee] += 1
    return shares
