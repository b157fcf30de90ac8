"""Forms of a version's page: its changelog, its part of the customers, its end."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django import forms

from marketplace.catalog.models import Version
from marketplace.catalog.rollouts import MOST_PERCENT
from marketplace.publishing.versions import MAX_CHANGELOG
from marketplace.web.forms import PlainForm


class ChangelogForm(PlainForm):
    """The changelog, until the version is published."""

    changelog = forms.CharField(
        label="Changes",
        required=False,
        max_length=MAX_CHANGELOG,
        widget=forms.Textarea(attrs={"rows": 5}),
        help_text="Everybody reads it once the version is published; then it stands.",
    )


class RolloutForm(PlainForm):
    """The part of the customers that get the version under the bare name."""

    percent = forms.IntegerField(
        label="Percent of the customers",
        min_value=1,
        max_value=MOST_PERCENT,
        initial=5,
        help_text="A customer always gets the same version. Raise it step by step; 100 makes it the default.",
    )


class EndForm(PlainForm):
    """The announced end of a version."""

    ends_on = forms.DateField(
        label="Last day is before", widget=forms.DateInput(attrs={"type": "date"}), help_text="00:00 UTC of this day."
    )
    replacement = forms.TypedChoiceField(label="Customers call instead", required=False, coerce=int, empty_value=None)

    def __init__(self, *args: Any, earliest: datetime, others: list[Version], **kwargs: Any) -> None:
        first = _first_day(earliest)
        kwargs.setdefault("initial", {"ends_on": first})
        super().__init__(*args, **kwargs)
        self.fields["ends_on"].help_text = f"00:00 UTC of this day; {first:%-d %b %Y} at the earliest."
        names = [(one.number, f"Version {one.number}") for one in others]
        self.fields["replacement"].choices = [("", "The default version"), *names]  # type: ignore[attr-defined]

    @property
    def ends_at(self) -> datetime:
        """Return the moment at which the version ends."""
        return datetime.combine(self.cleaned_data["ends_on"], time.min, tzinfo=UTC)


def _first_day(earliest: datetime) -> date:
    """Return the first day that begins at `earliest` or later."""
    day = earliest.astimezone(UTC).date()
    return day if datetime.combine(day, time.min, tzinfo=UTC) >= earliest else day + timedelta(days=1)
