"""The ledger transactions of disputes, under the lock of the top-up. Amounts are nano-dollars.

`dispute` has the frozen credit, and `clearing` (negative) the money that the bank took. A loss is borne, in this order,
by the frozen credit, other paid credit of the customer, those who earned with the credit that was spent, and the
platform.
"""

from __future__ import annotations

from collections.abc import Iterable

from billing.disputes.earners import earned_with
from billing.ledger import Line, get_account, post_transaction
from billing.locks import lock_account, lock_accounts
from billing.models import Account, Dispute, LedgerTransaction, Lot
from billing.pricing import NANO_PER_CENT
from billing.refunds import disputed_parts, lot_of
from marketplace.accounts.models import Organization

_Kind = Account.Kind
_PAYEES = (_Kind.CREATOR_RESERVE, _Kind.CREATOR_PAYABLE, _Kind.RECEIVABLE)  # in the order in which they give


def freeze_rest(dispute: Dispute) -> int:
    """Freeze what is left of the payment's credit, up to the disputed amount, but for what open holds have set aside.

    Returns how much; what is held now is frozen by a later call.
    """
    _grow(dispute)
    lot = lot_of(dispute.top_up)
    if lot is None:
        return 0
    wallet = lock_account(_wallet(dispute))
    lot.refresh_from_db()
    missing = dispute.credit_cents * NANO_PER_CENT - dispute.frozen_nano_usd
    amount = min(missing, lot.remaining, wallet.available)
    if amount <= 0:
        return 0
    post_transaction(
        kind=LedgerTransaction.Kind.DISPUTE_FROZEN,
        reference=f"{dispute.pk}:{dispute.frozen_nano_usd}",
        lines=[Line(wallet, -amount, lot), Line(_frozen(dispute), amount)],
    )
    dispute.frozen_nano_usd += amount
    dispute.save()
    return amount


def _grow(dispute: Dispute) -> None:
    """Dispute credit and tax that a refund had taken, and returned since then because it failed."""
    missing = dispute.amount_cents - dispute.credit_cents - dispute.tax_cents
    if missing > 0:
        credit, tax = disputed_parts(dispute.top_up, missing)
        dispute.credit_cents += credit
        dispute.tax_cents += tax
        dispute.save()


def give_back_frozen(dispute: Dispute) -> None:
    """Return the frozen credit: the bank decided for the platform."""
    if dispute.frozen_nano_usd == 0:
        return
    amount = dispute.frozen_nano_usd
    post_transaction(
        kind=LedgerTransaction.Kind.DISPUTE_WON,
        reference=dispute.pk,
        lines=[Line(_wallet(dispute), amount, lot_of(dispute.top_up)), Line(_frozen(dispute), -amount)],
    )


def book_loss(dispute: Dispute) -> None:
    """Book who bears the money that the bank keeps. Stripe's fee is booked with its movement."""
    amount = dispute.amount_cents * NANO_PER_CENT
    tax = dispute.tax_cents * NANO_PER_CENT
    spent = dispute.credit_cents * NANO_PER_CENT - dispute.frozen_nano_usd
    set_off = _set_off(dispute, spent)
    from_payees = _from_payees(dispute, spent + sum(line.amount for line in set_off))
    borne = dispute.frozen_nano_usd + tax - sum(line.amount for line in (*set_off, *from_payees))
    post_transaction(
        kind=LedgerTransaction.Kind.DISPUTE_LOST,
        reference=dispute.pk,
        lines=[
            *set_off,
            *from_payees,
            Line(_frozen(dispute), -dispute.frozen_nano_usd),
            Line(get_account(kind=_Kind.TAX), -tax),
            Line(get_account(kind=_Kind.LOSSES), borne - amount),
            Line(get_account(kind=_Kind.CLEARING), amount),
        ],
    )


def _set_off(dispute: Dispute, spent: int) -> list[Line]:
    """Take what was spent of a lost payment from the customer's other paid credit, the oldest first."""
    wallet = lock_account(_wallet(dispute))
    lines = []
    rest = min(spent, wallet.available)
    for lot in Lot.objects.filter(account=wallet, kind=Lot.Kind.PAID, remaining__gt=0).order_by("pk"):
        if rest <= 0:
            break
        lines.append(Line(wallet, -min(rest, lot.remaining), lot))
        rest -= min(rest, lot.remaining)
    return lines


def _from_payees(dispute: Dispute, amount: int) -> list[Line]:
    """Take the payees' parts of what was spent: from the reserve, then from what is payable; the rest they owe."""
    lot = lot_of(dispute.top_up)
    shares = earned_with(lot, amount) if lot is not None and amount > 0 else {}
    shares.pop(None, None)  # the platform's own part is a loss
    payees = Organization.objects.in_bulk([payee for payee in shares if payee is not None])
    accounts = {
        payee: [get_account(kind=kind, organization=organization) for kind in _PAYEES]
        for payee, organization in payees.items()
    }
    balances = lock_accounts(account for found in accounts.values() for account in found)
    lines: list[Line] = []
    for payee, found in accounts.items():
        lines += _taken([balances[account.pk] for account in found], shares[payee])
    return lines


def _taken(accounts: Iterable[Account], due: int) -> list[Line]:
    lines = []
    for account in accounts:
        part = due if account.kind == _Kind.RECEIVABLE else min(due, max(account.posted, 0))
        due -= part
        if part > 0:
            lines.append(Line(account, -part))
    return lines


def _wallet(dispute: Dispute) -> Account:
    return get_account(kind=_Kind.CUSTOMER_CREDIT, organization=dispute.top_up.organization)


def _frozen(dispute: Dispute) -> Account:
    return get_account(kind=_Kind.DISPUTE, organization=dispute.top_up.organization)
