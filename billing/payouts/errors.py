"""Refusals of payouts, with what the creator can do about them."""

from __future__ import annotations

from collections.abc import Sequence

from billing.errors import BillingError
from protocol.money import CENTS, usd


class PayoutsFrozen(BillingError):
    """Nothing can be paid to this organization now. `reasons` are sentences for the creator."""

    code = "payouts_frozen"
    status = 409

    def __init__(self, reasons: Sequence[str]) -> None:
        """Keep the reasons; the message holds them all."""
        super().__init__(" ".join(reasons))
        self.reasons = tuple(reasons)


class BelowMinimum(BillingError):
    """The payable balance, or the amount asked for, is less than the minimum. Amounts in cents."""

    code = "below_minimum"
    status = 409

    def __init__(self, amount_cents: int, minimum_cents: int) -> None:
        """Name both amounts."""
        super().__init__(
            f"a payout is at least {usd(minimum_cents, CENTS)}, and this one would be {usd(amount_cents, CENTS)}",
            field="amount_cents",
        )
        self.amount_cents = amount_cents
        self.minimum_cents = minimum_cents


class AmountNotPayable(BillingError):
    """More was asked for than is payable. Amounts in cents."""

    code = "amount_not_payable"
    status = 409

    def __init__(self, amount_cents: int, payable_cents: int) -> None:
        """Name both amounts."""
        super().__init__(
            f"{usd(amount_cents, CENTS)} was asked for and {usd(payable_cents, CENTS)} is payable now",
            field="amount_cents",
        )


class PayoutInProgress(BillingError):
    """An earlier payout is still on its way: one at a time."""

    code = "payout_in_progress"
    status = 409

    def __init__(self) -> None:
        """Need no figures: the list of payouts shows the one that is open."""
        super().__init__("an earlier payout is still on its way; the next one starts when it has arrived")


class NoPayoutAccount(BillingError):
    """The organization has no account at Stripe that could be opened yet."""

    code = "no_payout_account"
    status = 409

    def __init__(self) -> None:
        """Say what to do first."""
        super().__init__("set up payouts first: Stripe asks for your details and your bank account")


class InvalidTerms(BillingError):
    """A schedule or a minimum that does not exist; `field` names it."""

    code = "invalid"
    status = 400


class StatementNotReady(BillingError):
    """The entries of a payout have no numbers yet: within seconds they have."""

    code = "statement_not_ready"
    status = 409

    def __init__(self) -> None:
        """Say when to come back."""
        super().__init__("the statement is ready within seconds", headers={"Retry-After": "5"})
