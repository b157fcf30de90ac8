"""The books as plain dicts: balances, lots, transactions and months. It shares no code with the product.

An account is a pair of its kind and its owner, None for the platform. Amounts are nano-dollars. Months are counted
backwards: 0 is the running one, 1 the one before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

Owner = UUID | None
Account = tuple[str, Owner]
NEVER = 10**9
MOST_MONTHS_AGO = 2


@dataclass
class Lot:
    """Credit of one origin. `expires_in` counts hours; at 0 or less it is expired."""

    number: int  # in the order of origin
    owner: UUID
    paid: bool
    expires_in: int
    remaining: int = 0

    @property
    def turn(self) -> tuple[bool, int, int]:
        """Promotional credit is spent first, sooner expiry first, older first."""
        return (self.paid, self.expires_in, self.number)


@dataclass
class Transaction:
    """One booked movement; `months_ago` is when it happened, `period` what it counts to once it is posted."""

    kind: str
    amounts: dict[Account, int]
    months_ago: int = 0
    period: int | None = None


@dataclass
class Model:
    """Everything that the books must say."""

    balances: Counter[Account] = field(default_factory=Counter)
    lots: list[Lot] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    held: Counter[UUID] = field(default_factory=Counter)  # by customer
    last_closed: int | None = None  # months ago
    young: Counter[UUID] = field(default_factory=Counter)  # earnings of the reserve that are not old enough, by payee
    earned: Counter[UUID] = field(default_factory=Counter)  # by payee, less what was taken back

    def book(self, kind: str, amounts: Mapping[Account, int]) -> None:
        """Write one transaction."""
        moved = {account: amount for account, amount in amounts.items() if amount}
        assert sum(moved.values()) == 0, (kind, moved)
        for account, amount in moved.items():
            self.balances[account] += amount
            if account[0] == "creator_reserve" and account[1] is not None and amount > 0:
                self.young[account[1]] += amount
        self.transactions.append(Transaction(kind, moved))

    def available(self, customer: UUID) -> int:
        """Return the credit that no hold has set aside."""
        return self.balances["customer_credit", customer] - self.held[customer]

    # Lots

    def deposit(self, customer: UUID, amount: int, *, paid: bool, expires_in: int = NEVER) -> Lot:
        """Add a lot; the caller books its transaction."""
        lot = Lot(len(self.lots), customer, paid, expires_in, amount)
        self.lots.append(lot)
        return lot

    def lots_of(self, customer: UUID) -> list[Lot]:
        return sorted((lot for lot in self.lots if lot.owner == customer), key=lambda lot: lot.turn)

    def draw(self, customer: UUID, amount: int) -> dict[int, int]:
        """Spend credit; return what each lot gave."""
        drawn = {}
        for lot in self.lots_of(customer):
            part = min(amount, lot.remaining)
            if part > 0:
                lot.remaining -= part
                amount -= part
                drawn[lot.number] = part
        assert amount == 0, "the caller checks what is there"
        return drawn

    def give_back(self, customer: UUID, amount: int, drawn: dict[int, int]) -> None:
        """Put credit back where it came from, last drawn first; `drawn` keeps what each lot still misses."""
        for lot in reversed(self.lots_of(customer)):
            part = min(amount, drawn.get(lot.number, 0))
            if part > 0:
                lot.remaining += part
                drawn[lot.number] -= part
                amount -= part
        assert amount == 0, "no more comes back than was drawn"

    # Months

    @property
    def first_open(self) -> int:
        """Return the first month that is open, in months ago."""
        return NEVER if self.last_closed is None else self.last_closed - 1

    def happened(self, months_ago: int) -> None:
        """Let all that is not posted have happened so long ago."""
        for transaction in self.transactions:
            if transaction.period is None:
                transaction.months_ago = months_ago

    def post(self) -> None:
        """Give each transaction the month that it counts to."""
        for transaction in self.transactions:
            if transaction.period is None:
                transaction.period = min(transaction.months_ago, self.first_open)

    def close(self, month: int) -> str:
        """Close a month; return what the books answer."""
        if month == 0:
            return "not_over"
        self.post()
        if self.last_closed is not None and self.last_closed <= month:
            return "already_closed"
        earlier = {transaction.period or 0 for transaction in self.transactions}
        if any(month < period <= self.first_open for period in earlier):
            return "earlier_open"
        self.last_closed = month
        return "closed"

    def movements(self, month: int) -> dict[str, Counter[str]]:
        """Return the sums of a month by kind of account and kind of transaction."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for transaction in self.transactions:
            if transaction.period == month:
                for (account, _owner), amount in transaction.amounts.items():
                    found[account][transaction.kind] += amount
        return found

    def opening(self, account: str, month: int) -> int:
        """Return the sum of everything that counts to earlier months."""
        return sum(
            amount
            for transaction in self.transactions
            if transaction.period is not None and transaction.period > month
            for (kind, _owner), amount in transaction.amounts.items()
            if kind == account
        )


def divide(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide by largest remainder; ties go to the earlier weight."""
    total = sum(weights)
    if total == 0:
        return [0] * len(weights)
    parts = [amount * weight // total for weight in weights]
    ranked = sorted(range(len(weights)), key=lambda place: (-(amount * weights[place] % total), place))
    for place in ranked[: amount - sum(parts)]:
        parts[place] += 1
    return parts
