"""The form of a webhook: its address and the events that it asks for."""

from __future__ import annotations

from django import forms

from billing.budgets.addresses import MAX_URL
from marketplace.alerts.events import ALERTS, KINDS
from marketplace.web.forms import PlainForm


class WebhookForm(PlainForm):
    """An address and its events."""

    url = forms.CharField(max_length=MAX_URL, label="Address", help_text="https://, reachable from the internet.")
    events = forms.MultipleChoiceField(
        label="Events",
        widget=forms.CheckboxSelectMultiple,
        initial=[ALERTS],
        choices=[(kind.name, f"{kind.label} ({kind.name})") for kind in KINDS],
    )
