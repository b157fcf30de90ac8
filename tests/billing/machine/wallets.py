"""Credit: top-ups through Stripe, promotions with and without an end, expiry, and credit taken back whole."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import pytest
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from billing.errors import InsufficientFunds
from billing.lots import expire_lots
from billing.models import LedgerTransaction
from billing.pricing import NANO_PER_CENT
from billing.services import credit_promotion, refresh_top_up, reverse_transaction
from devstack.stripe_double.payments import card_fee_cents
from tests.billing.machine.model import NEVER, Lot
from tests.billing.machine.world import World, change, pick
from tests.billing.top_ups import begin, pay

number = st.integers(0, 999)
TAX_PERCENT = 19


@dataclass
class Payment:
    """A credited top-up in cents, and what refunds and disputes took of it."""

    row: UUID
    lot: Lot
    cents: int
    tax: int
    back_credit: int = 0
    back_tax: int = 0


class Wallets(World):
    """Operations on credit. `origins` are credits that can be taken back: transaction, lot, amount, source."""

    def arrange(self) -> None:
        super().arrange()
        self.origins: list[tuple[int, Lot, int, str]] = []
        self.taken_back: set[int] = set()
        self.payments: list[Payment] = []
        self.double.tax_percent = TAX_PERCENT
        # Lots of some predictions each, so that charges draw several of them.
        for hours in (NEVER, 2, 1, 3, NEVER):
            self.promote(0, 10**10 + 1, hours)
        for cents in (701, 599, 803, 1_500, 2_000):
            self.top_up(1, cents)

    @rule(customer=st.integers(0, 1), cents=st.integers(500, 3_000))
    def top_up(self, customer: int, cents: int) -> None:
        organization = self.customers[customer]
        top_up = begin(organization, cents)
        pay(self.double, top_up)
        for _news in range(2):
            top_up = refresh_top_up(top_up_id=top_up.pk)
        tax_cents = cents * TAX_PERCENT // 100
        assert top_up.tax_cents == tax_cents
        nano, tax = cents * NANO_PER_CENT, tax_cents * NANO_PER_CENT
        fee = card_fee_cents(cents + tax_cents) * NANO_PER_CENT
        lot = self.model.deposit(organization.pk, nano, paid=True)
        self.model.book("top_up", {("customer_credit", organization.pk): nano, ("stripe_cash", None): -nano})
        self.model.book("tax", {("tax", None): tax, ("stripe_cash", None): -tax})
        self.model.book("stripe_fee", {("stripe_cash", None): fee, ("stripe_fees", None): -fee})
        assert top_up.ledger_transaction_id is not None
        self.origins.append((top_up.ledger_transaction_id, lot, nano, "stripe_cash"))
        self.payments.append(Payment(top_up.pk, lot, cents, tax_cents))

    @rule(
        customer=st.integers(0, 1),
        amount=st.integers(1, 3 * 10**10),
        hours=st.sampled_from([NEVER, 1, 2, 3]),
    )
    def promote(self, customer: int, amount: int, hours: int) -> None:
        organization = self.customers[customer]
        reference = str(uuid.uuid4())
        end = None if hours == NEVER else timezone.now() + timedelta(hours=hours)
        first, again = (
            credit_promotion(organization=organization, amount_nano_usd=amount, reference=reference, expires_at=end)
            for _twice in range(2)
        )
        assert first.pk == again.pk
        lot = self.model.deposit(organization.pk, amount, paid=False, expires_in=hours)
        self.model.book("promotion", {("customer_credit", organization.pk): amount, ("promotion", None): -amount})
        self.origins.append((first.pk, lot, amount, "promotion"))

    @precondition(lambda self: any(0 < lot.expires_in < NEVER for lot in self.model.lots))
    @rule()
    def an_hour_passes_for_promotions(self) -> None:
        change("UPDATE billing_lot SET expires_at = expires_at - interval '1 hour'")
        for lot in self.model.lots:
            if lot.expires_in != NEVER:
                lot.expires_in -= 1

    @precondition(lambda self: any(lot.expires_in <= 0 for lot in self.model.lots))
    @rule()
    def expire(self) -> None:
        """Take expired promotions, oldest lot of each customer first, but for what is held."""
        expired = 0
        for lot in self.model.lots:
            amount = min(lot.remaining, self.model.available(lot.owner))
            if lot.expires_in <= 0 and amount > 0:
                lot.remaining -= amount
                self.model.book("expiry", {("customer_credit", lot.owner): -amount, ("breakage", None): amount})
                expired += 1
        assert expire_lots() == expired

    @rule(which=number)
    def take_back(self, which: int) -> None:
        """Undo a credit whole: once, and only while all of it is there and not set aside."""
        transaction_id, lot, amount, source = pick(self.origins, which)
        if transaction_id in self.taken_back:
            before = LedgerTransaction.objects.count()
            reverse_transaction(transaction_id=transaction_id, memo="again")
            assert LedgerTransaction.objects.count() == before
        elif lot.remaining < amount or self.model.available(lot.owner) < amount:
            with pytest.raises(InsufficientFunds):
                reverse_transaction(transaction_id=transaction_id, memo="spent")
        else:
            reverse_transaction(transaction_id=transaction_id, memo="mistake")
            lot.remaining -= amount
            self.model.book("correction", {("customer_credit", lot.owner): -amount, (source, None): amount})
            self.taken_back.add(transaction_id)
