"""The filter of the usage page: a period, a model, a key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.utils import timezone

from billing.rollups.filtered import UsageFilter
from marketplace.accounts.models import Organization
from marketplace.web.forms import PlainForm
from marketplace.web.queries import last_days, usage_choices

RANGES = (7, 30, 90)
DAYS = 30
LONGEST = timedelta(days=366)
_DATE = forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")


class UsageForm(PlainForm):
    """Every field may be left out. `days` counts back from today; `first` and `last` (inclusive) go before it."""

    days = forms.TypedChoiceField(coerce=int, choices=[(n, f"{n} days") for n in RANGES], required=False)
    first = forms.DateField(label="From (UTC)", required=False, widget=_DATE)
    last = forms.DateField(label="To, inclusive", required=False, widget=_DATE)
    model = forms.ChoiceField(label="Model", required=False)
    key = forms.ChoiceField(label="Key", required=False)

    def __init__(self, *args: Any, organization: Organization, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        models, keys = usage_choices(organization=organization)
        asked = self.data.get("model", "")[:128]
        if asked and asked not in models:
            models.append(asked)  # of a longer time ago
        self.fields["model"].choices = [("", "All models"), *((name, name) for name in models)]  # type: ignore[attr-defined]
        self.fields["key"].choices = [("", "All keys"), *keys]  # type: ignore[attr-defined]

    @property
    def visible_filters(self) -> list[forms.BoundField]:
        """The fields that the page shows; the buttons above them are `days`."""
        return [self[name] for name in ("model", "key", "first", "last")]

    def clean(self) -> dict[str, Any]:
        """Refuse a period that ends before it begins, or that is longer than a year."""
        data: dict[str, Any] = super().clean() or {}
        first, last = data.get("first"), data.get("last") or timezone.now().date()
        if first and not first <= last < first + LONGEST:
            self.add_error("first", "Choose a first day that is not after the last, and at most a year before it.")
        return data

    def wanted(self) -> UsageFilter:
        """Return the filter; fields at fault are left out of it."""
        data = self.cleaned_data if self.is_valid() else {}
        period = last_days(data.get("days") or DAYS)
        first, last = data.get("first"), data.get("last")
        until = last + timedelta(days=1) if last else period.until
        since = first or (until - (period.until - period.since) if last else period.since)
        key = data.get("key")
        return UsageFilter(since, until, data.get("model") or None, UUID(key) if key else None)
