"""Forms of a model's protection: the creator's rules, and a customer's wish for more calls."""

from __future__ import annotations

from typing import Any

from django import forms

from marketplace.protection.models import MAX_CALLS_PER_DAY, Measure
from marketplace.web.forms import PlainForm

_MEASURES = (
    (Measure.TELL, "Tell me, and do nothing else"),
    (Measure.SLOW, "Tell me, and slow that customer to one call in five minutes"),
    (Measure.ASK, "Tell me, and allow few calls a day until I have answered"),
    (Measure.STOP, "Tell me, and stop that customer"),
    ("", "Do not count messages"),
)


class ProtectionForm(PlainForm):
    """The rules of one model."""

    on_copying = forms.ChoiceField(
        label="When a customer seems to be making a copy",
        required=False,
        choices=_MEASURES,
        help_text="The creator of a copy needs different messages, spread evenly over the task.",
    )
    calls_per_day = forms.IntegerField(
        label="Calls per day of a new customer",
        required=False,
        min_value=1,
        max_value=MAX_CALLS_PER_DAY,
        help_text="Doubled in each week, and raised by your click. Empty: as many as they like.",
    )
    logprobs_open = forms.BooleanField(label="Callers may ask for log-probabilities", required=False)

    def rules(self) -> dict[str, Any]:
        """Return the keyword arguments of `set_protection`."""
        return {name: self.cleaned_data[name] for name in ("on_copying", "calls_per_day", "logprobs_open")}


class MoreCallsForm(PlainForm):
    """The calls per day that a customer would like to make."""

    calls_per_day = forms.IntegerField(label="Calls per day", min_value=1, max_value=MAX_CALLS_PER_DAY, initial=1_000)
