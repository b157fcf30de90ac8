"""Forms of the staff's pages."""

from __future__ import annotations

from datetime import UTC, datetime

from django import forms

from billing.incidents import MAX_REASON as MAX_INCIDENT_REASON
from marketplace.catalog.models import BaseModel
from marketplace.operations import incidents, refunds, suspensions
from marketplace.operations.features import FeatureState
from marketplace.operations.models import Component, Incident, Update
from marketplace.operations.replicas import MAX_RELEASES_PER_HOUR
from marketplace.vault.identities import DEFAULT_RELEASES_PER_HOUR
from marketplace.web.forms import PlainForm

_MOMENT = "%Y-%m-%dT%H:%M"


class SearchForm(PlainForm):
    """The organization, prediction or top-up that is looked for."""

    q = forms.CharField(label="Name, or a member's e-mail address", max_length=200, required=False)
    suspended = forms.BooleanField(label="Suspended ones alone", required=False)


class FindForm(PlainForm):
    """The id of a prediction or a top-up."""

    id = forms.UUIDField(
        label="Id of a prediction or a top-up", help_text="As on the customer's receipt, usage or wallet."
    )


class SuspensionForm(PlainForm):
    """The reason of a suspension, or of its end."""

    reason = forms.CharField(
        label="Reason, which the members read", max_length=suspensions.MAX_REASON, widget=forms.Textarea({"rows": 3})
    )


class RefundForm(PlainForm):
    """A refund's amount and reason."""

    amount = forms.DecimalField(label="Amount, US dollars", min_value=0, max_digits=18, decimal_places=9)
    reason = forms.CharField(label="Reason, which the customer reads", max_length=refunds.MAX_REASON)
    request_id = forms.UUIDField(widget=forms.HiddenInput)

    @property
    def nano_usd(self) -> int:
        return int(self.cleaned_data["amount"] * 10**9)

    @property
    def cents(self) -> int | None:
        """Return the amount in cents; None for one that is not whole."""
        cents, rest = divmod(self.nano_usd, 10**7)
        return None if rest else cents


class ClearIncidentForm(PlainForm):
    """The end of an incident in the books."""

    code = forms.RegexField(
        r"^[0-9]{6}$", label="Code of your authenticator app", widget=forms.TextInput({"autocomplete": "one-time-code"})
    )
    reason = forms.CharField(label="What was found", max_length=MAX_INCIDENT_REASON)


class ReplicaForm(PlainForm):
    """A replica that may register."""

    name = forms.CharField(label="Name", max_length=100, help_text="As in its --replica-name.")
    base = forms.ChoiceField(label="Base model")
    host = forms.CharField(label="Host", max_length=200, help_text="That of its --advertise-url.")
    builds = forms.CharField(
        label="Builds it may run",
        required=False,
        max_length=2000,
        help_text="Digests, separated by spaces; empty: any build.",
    )
    releases_per_hour = forms.IntegerField(
        label="Keys within an hour", min_value=0, max_value=MAX_RELEASES_PER_HOUR, initial=DEFAULT_RELEASES_PER_HOUR
    )

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        bases = BaseModel.objects.order_by("-created_at").values_list("fingerprint", "name")[:100]
        base = self.fields["base"]
        assert isinstance(base, forms.ChoiceField)
        base.choices = list(bases)


class IncidentForm(PlainForm):
    """A message to customers about trouble, or about planned work."""

    kind = forms.ChoiceField(label="What is it?", choices=Incident.Kind.choices)
    title = forms.CharField(label="Title", max_length=incidents.MAX_TITLE)
    components = forms.MultipleChoiceField(
        label="Affected", choices=Component.choices, widget=forms.CheckboxSelectMultiple
    )
    text = forms.CharField(label="Message", max_length=incidents.MAX_TEXT, widget=forms.Textarea({"rows": 4}))
    starts_at = forms.DateTimeField(
        label="Start of planned work (UTC)",
        required=False,
        widget=forms.DateTimeInput({"type": "datetime-local"}, format=_MOMENT),
    )
    ends_at = forms.DateTimeField(
        label="Its end (UTC)",
        required=False,
        widget=forms.DateTimeInput({"type": "datetime-local"}, format=_MOMENT),
    )

    @property
    def moments(self) -> dict[str, datetime | None]:
        """Return start and end in UTC."""
        found = {name: self.cleaned_data.get(name) for name in ("starts_at", "ends_at")}
        return {name: value.astimezone(UTC) if value else None for name, value in found.items()}


class UpdateForm(PlainForm):
    """A further message about an incident."""

    state = forms.ChoiceField(label="Where it stands", choices=Update.State.choices)
    text = forms.CharField(label="Message", max_length=incidents.MAX_TEXT, widget=forms.Textarea({"rows": 3}))


class FeatureForm(PlainForm):
    """The reach of a feature. Its prefix is the feature's name: one page has the forms of all."""

    percent = forms.IntegerField(label="Percent switched on", min_value=0, max_value=100)
    on_for = forms.CharField(
        label="On for", required=False, max_length=8_000, help_text="Organizations by name, whatever the percentage is."
    )
    off_for = forms.CharField(label="Off for", required=False, max_length=8_000)

    @classmethod
    def of(cls, state: FeatureState) -> FeatureForm:
        """Return the form that shows a feature as it is."""
        shown = {"percent": state.percent, "on_for": " ".join(state.on_for), "off_for": " ".join(state.off_for)}
        form = cls(prefix=state.feature.name, initial=shown)
        if not state.feature.per_organization:
            form.fields["percent"].label = "100 is on, 0 is off"
            del form.fields["on_for"], form.fields["off_for"]
        return form

    def clean_on_for(self) -> list[str]:
        """Return the names."""
        return str(self.cleaned_data["on_for"]).replace(",", " ").split()

    def clean_off_for(self) -> list[str]:
        """Return the names."""
        return str(self.cleaned_data["off_for"]).replace(",", " ").split()
