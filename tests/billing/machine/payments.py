"""Payments that go back: refunds of unspent credit, and disputes that freeze credit until the bank decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from billing.disputes.services import refresh_dispute, take_what_came_back
from billing.errors import AmountNotRefundable, RefundsFrozen
from billing.models import TopUp, TopUpRefund
from billing.pricing import NANO_PER_CENT
from billing.refunds import advance_refund, refund_top_up, refundable_cents
from devstack.stripe_double import disputes, refunds
from tests.billing.machine.corrections import Corrections
from tests.billing.machine.model import Account, divide
from tests.billing.machine.wallets import Payment, number
from tests.billing.machine.world import pick
from tests.billing.payments import open_dispute


@dataclass
class Refund:
    """Credit and tax of a payment that went back to its card, in cents."""

    row: UUID
    payment: Payment
    cents: int
    tax: int
    state: str = "sent"


@dataclass
class Dispute:
    """Money that a bank took back. Cents, but for the nano-dollars that are frozen."""

    payment: Payment
    cents: int
    credit: int = 0
    tax: int = 0
    state: str = "open"
    frozen: int = 0
    borne: Counter[UUID | None] = field(default_factory=Counter)  # of a loss, by payee; None is the platform


class Payments(Corrections):
    """Operations on payments."""

    def arrange(self) -> None:
        super().arrange()
        self.refunds: list[Refund] = []
        self.disputes: dict[str, Dispute] = {}

    # Refunds

    def _refundable(self, payment: Payment) -> int:
        free = min(payment.lot.remaining, self.model.available(payment.lot.owner)) // NANO_PER_CENT
        return max(0, min(free, payment.cents - payment.back_credit))

    def _has_open_dispute(self, customer: UUID) -> bool:
        return any(one.state == "open" and one.payment.lot.owner == customer for one in self.disputes.values())

    @precondition(lambda self: self.payments)
    @rule(which=number, cents=st.integers(0, 3_100))
    def refund(self, which: int, cents: int) -> None:
        payment = pick(self.payments, which)
        row = TopUp.objects.get(pk=payment.row)
        assert refundable_cents(row) == self._refundable(payment)
        request_id = uuid4()

        def refund() -> TopUpRefund:
            return refund_top_up(
                organization=row.organization, top_up_id=row.pk, amount_cents=cents, request_id=request_id
            )

        if self._has_open_dispute(payment.lot.owner) or not 0 < cents <= self._refundable(payment):
            with pytest.raises((RefundsFrozen, AmountNotRefundable)):
                refund()
            return
        found, again = refund(), refund()
        assert found.pk == again.pk and found.state == again.state
        whole = _half_up(payment.tax * (payment.back_credit + cents), payment.cents)
        tax = min(max(whole - payment.back_tax, 0), payment.tax - payment.back_tax)
        booked = Refund(found.pk, payment, cents, tax)
        self._move_refund(booked, "top_up_refund", 1)
        # Stripe refunds no payment that a bank has taken back for good.
        if any(one.payment is payment and one.state == "lost" for one in self.disputes.values()):
            assert found.state == TopUpRefund.State.FAILED
            self._move_refund(booked, "refund_returned", -1)
            return
        assert found.state == TopUpRefund.State.SENT
        self._move_cash(-(cents + tax))
        self.refunds.append(booked)

    @precondition(lambda self: any(refund.state == "sent" for refund in self.refunds))
    @rule(which=number)
    def card_sends_refund_back(self, which: int) -> None:
        refund = pick([refund for refund in self.refunds if refund.state == "sent"], which)
        row = TopUpRefund.objects.get(pk=refund.row)
        assert row.stripe_refund_id is not None
        refunds.fail(self.double, row.stripe_refund_id)
        for _news in range(2):
            assert advance_refund(refund_id=refund.row).state == TopUpRefund.State.FAILED
        self._move_refund(refund, "refund_returned", -1)
        self._move_cash(refund.cents + refund.tax)
        refund.state = "failed"

    def _move_refund(self, refund: Refund, kind: str, sign: int) -> None:
        """Take credit and tax out of the books, or put them back."""
        payment = refund.payment
        credit, tax = (sign * part * NANO_PER_CENT for part in (refund.cents, refund.tax))
        payment.back_credit += sign * refund.cents
        payment.back_tax += sign * refund.tax
        payment.lot.remaining -= credit
        amounts: dict[Account, int] = {("customer_credit", payment.lot.owner): -credit, ("tax", None): -tax}
        self.model.book(kind, {**amounts, ("clearing", None): credit + tax})

    def _move_cash(self, cents: int) -> None:
        nano = cents * NANO_PER_CENT
        self.model.book("stripe_movement", {("clearing", None): nano, ("stripe_cash", None): -nano})

    # Disputes

    @precondition(lambda self: self.payments)
    @rule(which=number, permille=st.integers(1, 1_000))
    def dispute(self, which: int, permille: int) -> None:
        """A bank takes a payment back, or a part of it; what is left of its credit is frozen."""
        payment = pick(self.payments, which)
        self._dispute(payment, max(1, (payment.cents + payment.tax) * permille // 1_000))

    def _dispute(self, payment: Payment, cents: int) -> str:
        name = open_dispute(self.double, TopUp.objects.get(pk=payment.row), cents)
        for _news in range(2):
            assert refresh_dispute(dispute_id=name) is not None
        self.disputes[name] = Dispute(payment, cents)
        self._freeze(self.disputes[name])
        self._move_cash(-cents)
        fee = disputes.FEE_CENTS * NANO_PER_CENT
        self.model.book("stripe_fee", {("stripe_cash", None): fee, ("stripe_fees", None): -fee})
        return name

    @precondition(lambda self: self.disputes)
    @rule()
    def take_what_came_back(self) -> None:
        """Take what holds, corrections and refunds that failed have given back since."""
        due = [one for one in self.disputes.values() if one.state != "won" and one.payment.lot.remaining > 0]
        taken = [self._freeze(one) if one.state == "open" else self._recover(one) for one in due]
        assert take_what_came_back() == sum(taken)

    @precondition(lambda self: any(one.state == "open" for one in self.disputes.values()))
    @rule(which=number, won=st.booleans())
    def decide(self, which: int, won: bool) -> None:
        self._decide(pick([name for name, one in self.disputes.items() if one.state == "open"], which), won)

    def _decide(self, name: str, won: bool) -> None:
        one = self.disputes[name]
        disputes.decide(self.double, name, won=won)
        for _news in range(2):
            refresh_dispute(dispute_id=name)
        self._freeze(one)
        one.state = "won" if won else "lost"
        if won:
            self._win(one)
        else:
            self._lose(one)

    @rule(
        bought=st.lists(st.tuples(number, st.integers(0, 100)), min_size=2, max_size=5),
        permille=st.integers(1, 1_000),
        won=st.booleans(),
    )
    def dispute_what_was_spent(self, bought: list[tuple[int, int]], permille: int, won: bool) -> None:
        """A payment is disputed after it has paid predictions; one of them is corrected after the bank has decided."""
        before = len(self.holds)
        self.predict([(2 * which + 1, prompt) for which, prompt in bought])  # by the second customer
        charged = list(self.holds.values())[before:]
        paying = [one for one in self.payments if any(one.lot.number in hold.drawn for hold in charged)]
        if paying:
            paid = paying[0].cents + paying[0].tax
            self._decide(self._dispute(paying[0], max(1, paid * permille // 1_000)), won)
            for place in range(before, len(self.holds)):
                self.correct(place, permille, False)
            self.take_what_came_back()

    def _freeze(self, one: Dispute) -> int:
        """Dispute what refunds have not taken, and freeze what is left of it."""
        payment, lot, cents = one.payment, one.payment.lot, one.cents - one.credit - one.tax
        back = payment.back_credit + payment.back_tax
        whole = _half_up(payment.tax * (back + cents), payment.cents + payment.tax)
        tax = min(max(whole - payment.back_tax, 0), payment.tax - payment.back_tax, cents)
        credit = min(cents - tax, payment.cents - payment.back_credit)
        tax = min(cents - credit, payment.tax - payment.back_tax)
        payment.back_credit += credit
        payment.back_tax += tax
        one.credit += credit
        one.tax += tax
        amount = min(one.credit * NANO_PER_CENT - one.frozen, lot.remaining, self.model.available(lot.owner))
        if amount <= 0:
            return 0
        lot.remaining -= amount
        one.frozen += amount
        self.model.book("dispute_frozen", {("customer_credit", lot.owner): -amount, ("dispute", lot.owner): amount})
        return amount

    def _win(self, one: Dispute) -> None:
        lot = one.payment.lot
        lot.remaining += one.frozen
        one.payment.back_credit -= one.credit
        one.payment.back_tax -= one.tax
        if one.frozen:
            back: dict[Account, int] = {("customer_credit", lot.owner): one.frozen, ("dispute", lot.owner): -one.frozen}
            self.model.book("dispute_won", back)
        self._move_cash(one.cents)

    def _lose(self, one: Dispute) -> None:
        """Let frozen credit, other paid credit, the earners and the platform bear it, in this order."""
        customer = one.payment.lot.owner
        amounts: Counter[Account] = Counter(
            {("dispute", customer): -one.frozen, ("tax", None): -one.tax * NANO_PER_CENT}
        )
        rest = one.credit * NANO_PER_CENT - one.frozen
        due = min(rest, self.model.available(customer))
        for lot in self.model.lots:
            part = min(due, lot.remaining) if lot.owner == customer and lot.paid else 0
            lot.remaining -= part
            amounts["customer_credit", customer] -= part
            due -= part
            rest -= part
        for payee, part in self._earned_with(one.payment, rest).items():
            if payee is not None:
                one.borne[payee] = part
                for account, taken in self.taken_from(payee, part).items():
                    amounts[account] -= taken
        amounts["clearing", None] = one.cents * NANO_PER_CENT
        amounts["losses", None] = -sum(amounts.values())
        one.borne[None] = -amounts["losses", None]
        self.model.book("dispute_lost", amounts)

    def _recover(self, one: Dispute) -> int:
        """Let credit that came back make good a loss, for those who bore it."""
        lot = one.payment.lot
        amount = min(one.borne.total(), lot.remaining, self.model.available(lot.owner))
        if amount <= 0:
            return 0
        lot.remaining -= amount
        amounts: dict[Account, int] = {("customer_credit", lot.owner): -amount}
        bearers = _in_turn(party for party, part in one.borne.items() if part > 0)
        for party, part in zip(bearers, divide(amount, [one.borne[party] for party in bearers]), strict=True):
            one.borne[party] -= part
            amounts["losses" if party is None else "creator_reserve", party] = part
        self.model.book("dispute_recovered", amounts)
        return amount

    def _earned_with(self, payment: Payment, amount: int) -> dict[UUID | None, int]:
        """Divide an amount among those who earned with a lot: by what it still pays of each charge."""
        weights: Counter[UUID | None] = Counter()
        total = 0
        for hold in self.holds.values():
            paid = hold.drawn.get(payment.lot.number, 0)
            whole = sum(hold.shares.values())
            total += paid
            if paid and whole:
                for party, part in hold.shares.items():
                    if party is not None:
                        weights[party] += paid * part // whole
        if total == 0 or amount <= 0:
            return {}
        weights[None] = total - weights.total()
        parties = _in_turn(party for party in weights if party is None or weights[party] > 0)
        parts = divide(min(amount, total), [weights[party] for party in parties])
        return dict(zip(parties, parts, strict=True))


def _in_turn(parties: Iterable[UUID | None]) -> list[UUID | None]:
    """Return parties in the order in which equal remainders are rounded up: the platform last."""
    return sorted(parties, key=lambda party: (party is None, party.int if party else 0))


def _half_up(part: int, whole: int) -> int:
    return (2 * part + whole) // (2 * whole)
