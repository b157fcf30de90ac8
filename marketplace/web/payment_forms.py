"""Forms about money that a saved card pays or gets back: dollars as people write them into the cents of services."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID, uuid4

from django import forms

from billing.models import AutoTopUp, SavedCard
from billing.models.payments import MAX_TOP_UP_CENTS, MIN_TOP_UP_CENTS
from marketplace.web.forms import PlainForm


def as_dollars(cents: int) -> str:
    """Return cents as a person types them: 1234 → 12.34."""
    return f"{cents // 100}.{cents % 100:02d}"


def _dollars(label: str, *, least_cents: int, most_cents: int, initial: str = "") -> forms.DecimalField:
    return forms.DecimalField(
        label=label,
        min_value=Decimal(least_cents) / 100,
        max_value=Decimal(most_cents) / 100,
        decimal_places=2,
        initial=initial,
    )


class AutoTopUpForm(PlainForm):
    """The rule of automatic top-ups. `rule` is what stands now, if anything does."""

    FIELD_NAMES: ClassVar = {  # argument of `set_auto_top_up` → field
        "card_id": "card",
        "threshold_cents": "threshold",
        "amount_cents": "amount",
        "monthly_limit_cents": "monthly_limit",
    }

    card = forms.TypedChoiceField(label="Card to charge", coerce=UUID)
    threshold = _dollars("When below, in $", least_cents=1, most_cents=MAX_TOP_UP_CENTS, initial="5.00")
    amount = _dollars("Buy, in $", least_cents=MIN_TOP_UP_CENTS, most_cents=MAX_TOP_UP_CENTS, initial="25.00")
    monthly_limit = _dollars(
        "At most a month, in $", least_cents=MIN_TOP_UP_CENTS, most_cents=100 * MAX_TOP_UP_CENTS, initial="100.00"
    )

    def __init__(self, *args: Any, cards: Sequence[SavedCard], rule: AutoTopUp | None, **kwargs: Any) -> None:
        kwargs.setdefault("auto_id", "auto_%s")  # the page has another amount
        if rule is not None:
            standing = {
                "card": rule.card_id,
                "threshold": as_dollars(rule.threshold_cents),
                "amount": as_dollars(rule.amount_cents),
                "monthly_limit": as_dollars(rule.monthly_limit_cents),
            }
            kwargs.setdefault("initial", standing)
        super().__init__(*args, **kwargs)
        self.fields["card"].choices = [(str(card.pk), str(card)) for card in cards]  # type: ignore[attr-defined]

    def cents(self, name: str) -> int:
        """Return the amount of the field `name` in cents."""
        return int(self.cleaned_data[name] * 100)


class RefundForm(PlainForm):
    """Dollars of a top-up that go back to its card. `request_id` makes a second click the same refund."""

    FIELD_NAMES: ClassVar = {"amount_cents": "amount"}  # argument of `refund_top_up` → field

    request_id = forms.UUIDField(widget=forms.HiddenInput)
    amount = _dollars("Refund, in dollars", least_cents=1, most_cents=MAX_TOP_UP_CENTS)

    def renew(self) -> None:
        """Make the next click another refund, after this one was refused; what was typed stays."""
        if "request_id" in self.errors:
            self.add_error(None, "This form was out of date. Try again.")
        self.data = {"amount": self.data.get("amount", ""), "request_id": str(uuid4())}

    @property
    def amount_cents(self) -> int:
        return int(self.cleaned_data["amount"] * 100)
