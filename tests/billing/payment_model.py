"""Payments as plain dicts and integers: what the books must say after top-ups, predictions, refunds and disputes.

Written apart from the product, from docs/payments.md alone: no function of billing is used here. Amounts are cents or
nano-dollars, as their names say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

CENT = 10_000_000
TAX_PERCENT = 19


@dataclass
class Payment:
    """A top-up and its lot. `draws` are predictions that it paid for: creator's part and what the lot paid."""

    customer: int
    cents: int
    tax: int
    rest: int
    back_credit: int = 0  # cents that refunds and disputes took
    back_tax: int = 0
    draws: list[tuple[int, int, int, int]] = field(default_factory=list)  # creator, paid, creator's part, whole


@dataclass
class ModelDispute:
    payment: Payment
    cents: int
    credit: int = 0
    tax: int = 0
    frozen: int = 0
    state: str = "open"
    borne: Counter[int] = field(default_factory=Counter)  # by creators and the platform, of a loss


class Books:
    """Two customers, two creators; customers have paid credit alone."""

    def __init__(self) -> None:
        self.payments: list[Payment] = []
        self.disputes: dict[str, ModelDispute] = {}
        self.held = Counter[int]()
        self.reserve = Counter[int]()
        self.owed = Counter[int]()
        self.revenue = self.losses = self.tax = self.clearing = 0

    def posted(self, customer: int) -> int:
        return sum(one.rest for one in self.payments if one.customer == customer)

    def available(self, customer: int) -> int:
        return self.posted(customer) - self.held[customer]

    def under_dispute(self, customer: int) -> int:
        return sum(one.frozen for one in self._open_disputes(customer))

    def has_open_dispute(self, customer: int) -> bool:
        return bool(self._open_disputes(customer))

    def _open_disputes(self, customer: int) -> list[ModelDispute]:
        return [one for one in self.disputes.values() if one.state == "open" and one.payment.customer == customer]

    def top_up(self, customer: int, cents: int) -> Payment:
        tax = cents * TAX_PERCENT // 100  # as the double reckons it
        payment = Payment(customer, cents, tax, cents * CENT)
        self.payments.append(payment)
        self.tax += tax * CENT
        return payment

    def spend(self, customer: int, creator: int, nano: int) -> None:
        part = nano * 8_000 // 10_000
        self.reserve[creator] += part
        self.revenue += nano - part
        due = nano
        for payment in self.payments:
            paid = min(due, payment.rest) if payment.customer == customer else 0
            if paid:
                payment.rest -= paid
                payment.draws.append((creator, paid, part, nano))
                due -= paid
        assert due == 0

    def refundable(self, payment: Payment) -> int:
        free = min(payment.rest, self.available(payment.customer)) // CENT
        return max(0, min(free, payment.cents - payment.back_credit))

    def refund(self, payment: Payment, cents: int) -> int:
        """Return the tax that goes back with it."""
        whole = _half_up(payment.tax * (payment.back_credit + cents), payment.cents)
        tax = min(max(0, whole - payment.back_tax), payment.tax - payment.back_tax)
        self._give_back(payment, cents, tax, 1)
        payment.rest -= cents * CENT
        return tax

    def refund_failed(self, payment: Payment, cents: int, tax: int) -> None:
        self._give_back(payment, cents, tax, -1)
        payment.rest += cents * CENT

    def _give_back(self, payment: Payment, cents: int, tax: int, sign: int) -> None:
        payment.back_credit += sign * cents
        payment.back_tax += sign * tax
        self.tax -= sign * tax * CENT

    def open_dispute(self, name: str, payment: Payment, cents: int) -> None:
        self.clearing -= cents * CENT
        self.disputes[name] = ModelDispute(payment, cents)
        self.freeze(name)

    def freeze(self, name: str) -> None:
        """Dispute what is left of credit and tax, and freeze what is left of the lot."""
        one = self.disputes[name]
        if one.state != "open":
            return
        payment, cents = one.payment, one.cents - one.credit - one.tax
        whole = _half_up(payment.tax * (payment.back_credit + payment.back_tax + cents), payment.cents + payment.tax)
        tax = min(max(0, whole - payment.back_tax), payment.tax - payment.back_tax, cents)
        credit = min(cents - tax, payment.cents - payment.back_credit)
        tax = min(cents - credit, payment.tax - payment.back_tax)
        one.credit += credit
        one.tax += tax
        payment.back_credit += credit
        payment.back_tax += tax
        amount = max(0, min(one.credit * CENT - one.frozen, payment.rest, self.available(payment.customer)))
        payment.rest -= amount
        one.frozen += amount

    def win(self, name: str) -> None:
        self.freeze(name)
        one = self.disputes[name]
        one.state = "won"
        one.payment.rest += one.frozen
        one.payment.back_credit -= one.credit
        one.payment.back_tax -= one.tax
        self.clearing += one.cents * CENT

    def lose(self, name: str) -> None:
        self.freeze(name)
        one = self.disputes[name]
        one.state = "lost"
        spent = one.credit * CENT - one.frozen
        due = min(spent, self.available(one.payment.customer))
        set_off = due
        for payment in self.payments:
            taken = min(due, payment.rest) if payment.customer == one.payment.customer else 0
            payment.rest -= taken
            due -= taken
        taken_back = self._from_creators(one.payment, spent - set_off)
        self.tax -= one.tax * CENT
        one.borne = taken_back
        one.borne[PLATFORM] = one.cents * CENT - one.frozen - one.tax * CENT - set_off - taken_back.total()
        self.losses -= one.borne[PLATFORM]
        self.clearing += one.cents * CENT

    def recover(self, name: str) -> None:
        """Let credit that came back make good a loss."""
        one = self.disputes[name]
        amount = min(one.borne.total(), one.payment.rest, self.available(one.payment.customer))
        if one.state != "lost" or amount <= 0:
            return
        one.payment.rest -= amount
        for who, share in _divided(amount, one.borne).items():
            one.borne[who] -= share
            if who == PLATFORM:
                self.losses += share
            else:
                self.reserve[who] += share

    def _from_creators(self, payment: Payment, amount: int) -> Counter[int]:
        """Take their parts from the creators, and return them."""
        weights = Counter[int]()
        for creator, paid, part, whole in payment.draws:
            weights[creator] += paid * part // whole
        total = sum(paid for _creator, paid, _part, _whole in payment.draws)
        weights[PLATFORM] = total - weights.total()
        shares = _divided(min(amount, total), weights)
        shares.pop(PLATFORM, None)
        for creator, share in shares.items():
            from_reserve = min(share, self.reserve[creator])
            self.reserve[creator] -= from_reserve
            self.owed[creator] += share - from_reserve
        return shares


PLATFORM = 9  # after the creators, whose numbers are in the order of their ids


def _divided(amount: int, weights: Counter[int]) -> Counter[int]:
    """Divide by largest remainder; of equal ones the first is first."""
    whole = weights.total()
    if amount <= 0 or whole <= 0:
        return Counter()
    shares = Counter({who: weight * amount // whole for who, weight in weights.items() if weight})
    for who in sorted(shares, key=lambda who: (-(weights[who] * amount % whole), who))[: amount - shares.total()]:
        shares[who] += 1
    return shares


def _half_up(part: int, whole: int) -> int:
    return (2 * part + whole) // (2 * whole)
