"""A payout's way: taken from the payable balance, moved to the creator's account at Stripe, sent to the bank.

Each step asks Stripe without a database transaction, then moves the payout and the books together under the payout's
lock. A step may run twice, or be killed at any line: Stripe's idempotency keys and the payout's state make it one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from billing.ledger import record_incident
from billing.locks import lock_payout
from billing.models import Account, Incident, Outbox, Payout, PayoutAccount
from billing.models.payouts import MAX_PAYOUT_CENTS
from billing.payouts import books
from billing.payouts.errors import AmountNotPayable, BelowMinimum, PayoutInProgress, PayoutsFrozen
from billing.payouts.freezes import freezes
from billing.payouts.reserve import settle_balances
from billing.pricing import NANO_PER_CENT
from billing.stripe import StripeGateway, stripe_gateway
from billing.stripe.calls import CURRENCY
from billing.stripe.connect import BankPayout, PayoutPostponed, PayoutRefused, Transfer
from marketplace.accounts import audit
from marketplace.accounts.models import Organization, User

logger = logging.getLogger(__name__)

State = Payout.State
MAX_STEPS = 6  # of one call: created, transferred, paying, failed, returned, and one to spare
WATCH_PAID = timedelta(days=1)  # Stripe may report an arrived payout as failed for some days


def start_payout(
    *,
    organization: Organization,
    amount_cents: int | None = None,
    requested_by: User | None = None,
    payout_id: UUID | None = None,
) -> Payout:
    """Take a payout from the payable balance: all whole cents of it, or `amount_cents`. A task sends it on.

    Raises PayoutsFrozen, PayoutInProgress, BelowMinimum, AmountNotPayable; nothing moved then.
    """
    settle_balances(organization)
    frozen = freezes(organization)
    if frozen:
        raise PayoutsFrozen([freeze.sentence for freeze in frozen])
    account = PayoutAccount.objects.get(organization=organization)
    assert account.stripe_account_id is not None, "an active account exists at Stripe"
    try:
        with transaction.atomic():
            (payable,) = books.lock_balances(organization, Account.Kind.CREATOR_PAYABLE)
            cents = _payout_cents(amount_cents, payable // NANO_PER_CENT, account.minimum_cents)
            payout_id = payout_id or uuid4()
            taken = {"amount_cents": cents}
            audit.record(organization=organization, act="payout.started", subject=str(payout_id), data=taken)
            return Payout.objects.create(
                id=payout_id,
                organization=organization,
                stripe_account_id=account.stripe_account_id,
                amount_cents=cents,
                requested_by=requested_by,
                bank_last4=account.bank_last4,
                ledger_transaction=books.book_start(organization, str(payout_id), cents * NANO_PER_CENT),
            )
    except IntegrityError as error:
        if "billing_payout_one_open" in str(error):
            raise PayoutInProgress from None
        raise


def _payout_cents(asked: int | None, payable: int, minimum: int) -> int:
    cents = min(payable if asked is None else asked, MAX_PAYOUT_CENTS)
    if cents < minimum:
        raise BelowMinimum(cents, minimum)
    if cents > payable:
        raise AmountNotPayable(cents, payable)
    return cents


def advance_payout(*, payout_id: UUID, gateway: StripeGateway | None = None) -> Payout:
    """Take every step that can be taken now; a payout that waits says why in `frozen_by`. Idempotent.

    Raises PaymentProviderUnavailable: the next call goes on from there.
    """
    gateway = gateway or stripe_gateway()
    payout = Payout.objects.select_related("organization").get(pk=payout_id)
    for _step in range(MAX_STEPS):
        step = _STEPS.get(payout.state)
        if step is None:
            break
        before = payout.state
        try:
            step(payout, gateway)
        except PayoutPostponed as refusal:
            logger.warning("payout %s waits: %s", payout.pk, refusal.reason)
            Payout.objects.filter(pk=payout.pk, state=before).update(refusals=payout.refusals + 1)
            break
        payout = Payout.objects.select_related("organization").get(pk=payout_id)
        if payout.state == before:
            break
    return payout


def _send_to_account(payout: Payout, gateway: StripeGateway) -> None:
    if _is_frozen(payout):
        return
    try:
        transfer = gateway.connect.transfer(
            payout_id=payout.pk,
            account_id=payout.stripe_account_id,
            amount_cents=payout.amount_cents,
            refusals=payout.refusals,
        )
    except PayoutRefused as refusal:
        _give_back(payout, None, refusal.reason)
        return
    asked = (payout.amount_cents, CURRENCY, payout.stripe_account_id)
    if (transfer.amount_cents, transfer.currency, transfer.destination) != asked:
        _report_mismatch(payout, f"transfer {transfer.id} is not the one that was asked for")
        return
    with transaction.atomic():
        locked = lock_payout(payout.pk)
        if locked.state == State.CREATED:
            books.book_transfer(locked, transfer.balance_transaction_id)
            _move(locked, State.TRANSFERRED, transfer_id=transfer.id, transferred_at=timezone.now())


def _send_to_bank(payout: Payout, gateway: StripeGateway) -> None:
    if _came_back(payout, gateway) or _is_frozen(payout):
        return
    assert payout.transferred_at is not None
    try:
        bank = gateway.connect.pay_out(
            payout_id=payout.pk,
            account_id=payout.stripe_account_id,
            amount_cents=payout.amount_cents,
            since=payout.transferred_at,
            refusals=payout.refusals,
        )
    except PayoutRefused as refusal:
        with transaction.atomic():
            locked = lock_payout(payout.pk)
            if locked.state == State.TRANSFERRED:
                _move(locked, State.FAILED, failure_code=refusal.reason)
        return
    if (bank.amount_cents, bank.currency) != (payout.amount_cents, CURRENCY):
        _report_mismatch(payout, f"payout {bank.id} is not the one that was asked for")
        return
    with transaction.atomic():
        locked = lock_payout(payout.pk)
        if locked.state == State.TRANSFERRED:
            _move(locked, State.PAYING, bank_payout_id=bank.id, arrives_on=bank.arrives_on)


def _ask_bank(payout: Payout, gateway: StripeGateway) -> None:
    assert payout.bank_payout_id is not None
    bank = gateway.connect.retrieve_bank_payout(payout.bank_payout_id, account_id=payout.stripe_account_id)
    with transaction.atomic():
        locked = lock_payout(payout.pk)
        if locked.state == State.PAYING and bank.status == "paid":
            books.book_arrival(locked)
            _move(locked, State.PAID, paid_at=timezone.now(), arrives_on=bank.arrives_on)
            _announce(locked, Outbox.Topic.PAYOUT_PAID)
        elif locked.state == State.PAYING and _has_failed(bank):
            _move(locked, State.FAILED, failure_code=bank.failure_code or bank.status)


def _watch_arrived(payout: Payout, gateway: StripeGateway) -> None:
    """Look once more at a payout that arrived: banks send some back after days."""
    assert payout.bank_payout_id is not None
    bank = gateway.connect.retrieve_bank_payout(payout.bank_payout_id, account_id=payout.stripe_account_id)
    with transaction.atomic():
        locked = lock_payout(payout.pk)
        if locked.state == State.PAID and _has_failed(bank):
            if Payout.objects.filter(organization=locked.organization, state__in=Payout.OPEN).exists():
                return  # one at a time: this one is taken back after the one that is on its way
            books.book_late_failure(locked)
            _move(locked, State.FAILED, failure_code=bank.failure_code or bank.status)


def _take_back(payout: Payout, gateway: StripeGateway) -> None:
    assert payout.transfer_id is not None
    try:
        gateway.connect.reverse_transfer(
            payout.transfer_id, payout_id=payout.pk, amount_cents=payout.amount_cents, refusals=payout.refusals
        )
    except PayoutRefused as refusal:
        _report_mismatch(payout, f"transfer {payout.transfer_id} cannot be taken back: {refusal.reason}")
        return
    _came_back(payout, gateway)


def _came_back(payout: Payout, gateway: StripeGateway) -> bool:
    """Give a payout back to its creator if its transfer was reversed, by us or by a person at Stripe."""
    assert payout.transfer_id is not None
    transfer = gateway.connect.retrieve_transfer(payout.transfer_id)
    if transfer.reversed_cents == 0:
        return False
    if transfer.reversed_cents != payout.amount_cents:
        _report_mismatch(payout, f"{transfer.reversed_cents} cents of transfer {transfer.id} were reversed")
        return True
    _give_back(payout, transfer, payout.failure_code)
    return True


def _give_back(payout: Payout, transfer: Transfer | None, reason: str) -> None:
    with transaction.atomic():
        locked = lock_payout(payout.pk)
        if locked.state not in (State.CREATED, State.TRANSFERRED, State.FAILED):
            return
        books.book_return(locked, None if transfer is None else transfer.reversal_balance_transaction_id)
        _move(
            locked,
            State.RETURNED,
            failure_code=reason,
            return_id=None if transfer is None else transfer.reversal_id,
            returned_at=timezone.now(),
        )
        _announce(locked, Outbox.Topic.PAYOUT_RETURNED)


def _is_frozen(payout: Payout) -> bool:
    """Return whether the payout must wait, and note why: no money leaves while that holds."""
    found = freezes(payout.organization)
    code = found[0].code if found else ""
    if code != payout.frozen_by:
        Payout.objects.filter(pk=payout.pk).update(frozen_by=code)
    return bool(found)


def _has_failed(bank: BankPayout) -> bool:
    return bank.status in ("failed", "canceled")


def _move(payout: Payout, state: State, **fields: Any) -> None:
    """Write the next state; the payout is locked. What follows is due at once."""
    fields |= {"state": state, "frozen_by": "", "refusals": 0, "checks": 0, "next_check_at": Now()}
    if state == State.RETURNED:
        fields["next_check_at"] = None
    if state == State.PAID:
        fields["next_check_at"] = Now() + WATCH_PAID
    Payout.objects.filter(pk=payout.pk).update(**fields)


def _announce(payout: Payout, topic: Outbox.Topic) -> None:
    Outbox.objects.create(
        topic=topic,
        key=str(payout.pk),
        payload={
            "payout_id": str(payout.pk),
            "organization_id": str(payout.organization_id),
            "amount_nano_usd": payout.amount_cents * NANO_PER_CENT,
        },
    )


def _report_mismatch(payout: Payout, error: str) -> None:
    """Open an incident, which freezes all payouts until a person has looked."""
    logger.error("payout %s: %s", payout.pk, error)
    record_incident(kind=Incident.Kind.PAYOUT_MISMATCH, subject=str(payout.pk), detail={"error": error})


_STEPS: dict[str, Callable[[Payout, StripeGateway], None]] = {
    State.CREATED: _send_to_account,
    State.TRANSFERRED: _send_to_bank,
    State.PAYING: _ask_bank,
    State.PAID: _watch_arrived,
    State.FAILED: _take_back,
}
