"""Earnings: splits among several payees, the reserve, debts and netting, payouts that arrive, fail and come back."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from billing.models import Payout, SplitPart
from billing.payouts.checks import contradictions
from billing.payouts.errors import AmountNotPayable, BelowMinimum, PayoutInProgress, PayoutsFrozen
from billing.payouts.reserve import net_debt, release_matured
from billing.payouts.services import advance_payout, start_payout
from billing.pricing import NANO_PER_CENT
from billing.splits import Part, split_id
from devstack.stripe_double import connect_money
from tests.billing.machine.model import Account, divide
from tests.billing.machine.wallets import Wallets, number
from tests.billing.machine.world import change, pick

Reason = SplitPart.Reason
Share = tuple[UUID | None, int]  # a party and its basis points, in the order of the split


@dataclass
class Sent:
    """One payout. `payee` is the number of its organization."""

    row: UUID
    payee: int
    nano: int
    state: str = "created"


class Payees(Wallets):
    """Operations on earnings. The first payee has no account at Stripe, the bank of the last one takes nothing."""

    def arrange(self) -> None:
        super().arrange()
        first, second, third = (payee.pk for payee in self.payees)
        self.splits: list[tuple[int, list[Share]]] = []
        for parts in (
            [(second, 8_000, Reason.CREATOR)],
            [(second, 7_000, Reason.CREATOR), (third, 1_000, Reason.UPSTREAM), (first, 333, Reason.REFERRAL)],
            [(third, 3_333, Reason.CREATOR), (second, 3_333, Reason.BLEND), (third, 3_334, Reason.UPSTREAM)],
            [(first, 10_000, Reason.CREATOR)],
            [(third, 0, Reason.CREATOR), (second, 1, Reason.UPSTREAM)],
        ):
            rest = 10_000 - sum(bps for _payee, bps, _reason in parts)
            whole = (*(Part(*part) for part in parts), Part(None, rest, Reason.PLATFORM))
            self.splits.append((split_id(whole), [(part.organization_id, part.basis_points) for part in whole]))
        self.payouts: list[Sent] = []

    @staticmethod
    def shares_of(split: list[Share], cost: int) -> dict[UUID | None, int]:
        """Divide a cost; a payee that has two parts has both."""
        payees = [(payee, bps) for payee, bps in split if payee is not None]
        pool = cost * sum(bps for _payee, bps in payees) // 10_000
        shares: dict[UUID | None, int] = {None: cost - pool}
        for (payee, _bps), part in zip(payees, divide(pool, [bps for _payee, bps in payees]), strict=True):
            shares[payee] = shares.get(payee, 0) + part
        return shares

    def taken_from(self, payee: UUID, amount: int) -> dict[Account, int]:
        """Return what a payee gives from which account; the rest it owes."""
        found: dict[Account, int] = {}
        for kind in ("creator_reserve", "creator_payable"):
            found[kind, payee] = min(amount, self.model.balances[kind, payee])
            amount -= found[kind, payee]
        found["receivable", payee] = amount
        return found

    # The reserve and debts

    @rule()
    def two_weeks_pass_for_earnings(self) -> None:
        """All that was earned is old enough to be paid out; it was numbered in its time."""
        self.post_now()
        change("UPDATE billing_instant SET reached_at = reached_at - interval '15 days'")
        self.model.young.clear()

    def post_now(self) -> None:
        """Post what is not posted yet; closes.py says how."""
        raise AssertionError("the module of months does it")

    @rule(which=st.integers(0, 2))
    def release_reserve(self, which: int) -> None:
        payee = self.payees[which]
        assert release_matured(payee) == self._expect_release(payee.pk)

    def _expect_release(self, payee: UUID) -> int:
        """Book what matured: the reserve but for all that came in lately."""
        if self.model.balances["creator_reserve", payee] > 0:
            self.model.post()
        matured = max(0, self.model.balances["creator_reserve", payee] - self.model.young[payee])
        if matured:
            self.model.book(
                "reserve_release", {("creator_reserve", payee): -matured, ("creator_payable", payee): matured}
            )
        return matured

    @rule(which=st.integers(0, 2))
    def net(self, which: int) -> None:
        payee = self.payees[which]
        assert net_debt(payee) == self._expect_netting(payee.pk)

    def _expect_netting(self, payee: UUID) -> int:
        owed = -self.model.balances["receivable", payee]
        found = self.taken_from(payee, owed)
        netted = owed - found.pop(("receivable", payee))
        if netted:
            self.model.book("netting", {("receivable", payee): netted, **{kind: -part for kind, part in found.items()}})
        return netted

    # Payouts

    @rule(which=st.integers(0, 2), permille=st.none() | st.integers(0, 1_100))
    def pay_out(self, which: int, permille: int | None) -> None:
        """Start a payout of all that is payable, or of a part."""
        payee = self.payees[which]
        self._expect_netting(payee.pk)
        self._expect_release(payee.pk)
        payable = self.model.balances["creator_payable", payee.pk] // NANO_PER_CENT
        cents = payable if permille is None else payable * permille // 1_000
        refusal: type[Exception] | None = None
        if which == 0 or self.model.balances["receivable", payee.pk] < 0:
            refusal = PayoutsFrozen
        elif cents < 1:
            refusal = BelowMinimum
        elif cents > payable:
            refusal = AmountNotPayable
        elif self._has_open_payout(which):
            refusal = PayoutInProgress
        asked = None if permille is None else cents
        if refusal is not None:
            with pytest.raises(refusal):
                start_payout(organization=payee, amount_cents=asked)
            return
        payout = start_payout(organization=payee, amount_cents=asked)
        nano = cents * NANO_PER_CENT
        self.payouts.append(Sent(payout.pk, which, nano))
        self.model.book("payout", {("creator_payable", payee.pk): -nano, ("payout_in_transit", payee.pk): nano})

    @rule(which=st.integers(1, 2))
    def pay_day(self, which: int) -> None:
        """All that was earned is old enough, and is paid out."""
        self.two_weeks_pass_for_earnings()
        self.pay_out(which, None)
        if self.payouts:
            self.advance(len(self.payouts) - 1)

    @precondition(lambda self: any(sent.state == "paying" for sent in self.payouts))
    @rule()
    def banks_work(self) -> None:
        self.clock.let_banks_work()
        for sent in self.payouts:
            if sent.state == "paying":
                sent.state = "refused" if sent.payee == 2 else "arrived"

    @precondition(lambda self: self.payouts)
    @rule(which=number)
    def advance(self, which: int) -> None:
        """Take every step that a payout can take now; a payee that owes something waits."""
        sent = pick(self.payouts, which)
        payee = self.payees[sent.payee].pk
        if sent.state == "created" and self.model.balances["receivable", payee] >= 0:
            self._move(sent, "payout_transfer", {"clearing": -1, "stripe_cash": 1})
            sent.state = "paying"
        elif sent.state == "arrived":
            self._move(sent, "payout_paid", {"payout_in_transit": -1, "clearing": 1})
            sent.state = "paid"
        elif sent.state == "sent back" and not self._has_open_payout(sent.payee):
            self._move(sent, "payout_failed", {"payout_in_transit": 1, "clearing": -1})
            sent.state = "refused"
        if sent.state == "refused":
            back = {"payout_in_transit": -1, "creator_payable": 1, "clearing": 1, "stripe_cash": -1}
            self._move(sent, "payout_returned", back)
            sent.state = "returned"
        names = {"arrived": "paying", "sent back": "paid"}
        assert advance_payout(payout_id=sent.row).state == names.get(sent.state, sent.state)

    def _has_open_payout(self, payee: int) -> bool:
        """Return whether the books have one in progress; of what a bank sent back they do not know yet."""
        closed = ("paid", "returned", "sent back")
        return any(sent.payee == payee and sent.state not in closed for sent in self.payouts)

    def _move(self, sent: Sent, kind: str, signs: dict[str, int]) -> None:
        payee = self.payees[sent.payee].pk
        platforms = ("clearing", "stripe_cash")
        self.model.book(
            kind,
            {(name, None if name in platforms else payee): sign * sent.nano for name, sign in signs.items()},
        )

    @precondition(lambda self: any(sent.state == "paid" for sent in self.payouts))
    @rule(which=number)
    def bank_sends_back(self, which: int) -> None:
        """A bank sends back a payout that had arrived days ago."""
        sent = pick([sent for sent in self.payouts if sent.state == "paid"], which)
        row = Payout.objects.get(pk=sent.row)
        assert row.bank_payout_id is not None
        connect_money.send_back(self.double, row.bank_payout_id)
        sent.state = "sent back"

    def compare_payouts(self) -> None:
        assert contradictions() == []
