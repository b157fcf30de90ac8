"""Forms of budgets: limits in dollars, and a new team."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from django import forms

from billing.budgets.limits import MAX_LIMIT_NANO_USD, Limits
from billing.budgets.tree import MAX_NAME
from marketplace.web.forms import NANO_PER_USD, PlainForm


def _dollars(label: str) -> forms.DecimalField:
    most = Decimal(MAX_LIMIT_NANO_USD) / NANO_PER_USD
    return forms.DecimalField(label=label, required=False, min_value=0, max_value=most, decimal_places=9)


class _LimitFields(PlainForm):
    per_request = _dollars("Most for one request, in dollars")
    daily = _dollars("Most per day, in dollars")
    monthly = _dollars("Most per month, in dollars")
    total = _dollars("Most in all, in dollars")

    def limits(self) -> Limits:
        """Return the limits; an empty field is no limit."""
        values = (self.cleaned_data[name] for name in ("per_request", "daily", "monthly", "total"))
        return Limits(*(None if value is None else int(value * NANO_PER_USD) for value in values))


class TeamForm(_LimitFields):
    """A new team or project."""

    field_order = ("name",)
    name = forms.CharField(max_length=MAX_NAME, label="Name", help_text="A team or a project.")


class LimitsForm(_LimitFields):
    """The limits of one node. `initial` has nano-dollars; `parents` are the places to choose from."""

    def __init__(self, *args: Any, parents: list[tuple[str, str]], initial: dict[str, Any], **kwargs: Any) -> None:
        shown = {
            name: Decimal(value) / NANO_PER_USD if isinstance(value, int) else value for name, value in initial.items()
        }
        super().__init__(*args, initial=shown, **kwargs)
        if parents:
            self.fields["parent"] = forms.ChoiceField(label="Below", choices=parents, required=False)

    @property
    def parent_id(self) -> UUID | None:
        chosen = self.cleaned_data.get("parent")
        return UUID(chosen) if chosen else None
