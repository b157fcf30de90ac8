"""Forms of API keys: a new one, a change of its name and limits, and its rotation."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.text import capfirst

from marketplace.accounts.key_limits import MAX_MODEL_LENGTH, MAX_MODELS, MAX_NETWORK_LENGTH, MAX_NETWORKS
from marketplace.accounts.models import ApiKey
from marketplace.guards.policies import KINDS
from marketplace.web.forms import NANO_PER_USD, PlainForm

SCOPE_LABELS = {
    ApiKey.Scope.PREDICT: "Predict: call models and spend the wallet",
    ApiKey.Scope.PUBLISH: "Publish: upload, price, publish and retire models",
    ApiKey.Scope.ACCOUNT: "Account: read wallet and usage, manage keys, top up",
    ApiKey.Scope.READ: "Read: see usage, budgets and models, change nothing",
}


class LinesField(forms.CharField):
    """A list, one line each; blank lines are none. The service judges what stands there."""

    def __init__(self, *, most: int, length: int, rows: int = 3, **settings: Any) -> None:
        widget = forms.Textarea(attrs={"rows": rows, "spellcheck": "false"})
        super().__init__(required=False, max_length=most * (length + 2), widget=widget, **settings)

    def clean(self, value: Any) -> Any:
        """Return the lines."""
        return [line.strip() for line in super().clean(value).splitlines() if line.strip()]


class NetworksField(LinesField):
    """Networks that a key is used from."""

    def __init__(self) -> None:
        super().__init__(
            most=MAX_NETWORKS,
            length=MAX_NETWORK_LENGTH,
            label="Used from",
            help_text=f"Optional. Networks as 203.0.113.0/24 or 2001:db8::/32, one a line, at most {MAX_NETWORKS}. "
            "From elsewhere the key is refused.",
        )


class ModelsField(LinesField):
    """Models that a key may call."""

    def __init__(self) -> None:
        super().__init__(
            most=MAX_MODELS,
            length=MAX_MODEL_LENGTH,
            label="May call",
            help_text=f"Optional. Models as organization/model, one a line, at most {MAX_MODELS}. Others are refused.",
        )


class ChangeKeyForm(PlainForm):
    """Name, networks and models of a key and its rotations."""

    name = forms.CharField(max_length=100, label="Name")
    networks = NetworksField()
    models = ModelsField()


class RotateKeyForm(PlainForm):
    """For how long the old key works on."""

    overlap = forms.TypedChoiceField(
        label="The old key works on for",
        coerce=int,
        choices=[("0", "no time: it ends now"), ("3600", "an hour"), ("86400", "24 hours"), ("604800", "7 days")],
        initial="86400",
    )

    @property
    def lasts(self) -> timedelta:
        return timedelta(seconds=self.cleaned_data["overlap"])


class KeyForm(PlainForm):
    """A new API key: `scopes` offers only what the person holds."""

    name = forms.CharField(
        max_length=100, label="Name", help_text="What will use the key, for example “billing service”."
    )
    scopes = forms.MultipleChoiceField(label="May be used to", widget=forms.CheckboxSelectMultiple, initial=["predict"])
    days = forms.TypedChoiceField(
        label="Expires",
        coerce=int,
        choices=[("0", "Never"), ("30", "In 30 days"), ("90", "In 90 days"), ("365", "In a year")],
    )
    monthly_limit = forms.DecimalField(
        label="Monthly limit in dollars",
        required=False,
        min_value=Decimal("0.01"),
        max_value=Decimal(1_000_000),
        decimal_places=2,
        help_text="Optional. Predictions beyond it are refused before they cost anything.",
    )

    mask = forms.MultipleChoiceField(
        label="Mask personal data",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        choices=[(kind, capfirst(name)) for kind, name in KINDS.items()],
        help_text="Optional. Models get a placeholder; answers come back with the value. Changed on the key's page.",
    )

    networks = NetworksField()
    models = ModelsField()

    def __init__(self, *args: Any, allowed: frozenset[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(scope.value, SCOPE_LABELS[scope]) for scope in ApiKey.Scope if scope.value in allowed]
        self.fields["scopes"].choices = choices  # type: ignore[attr-defined]

    @property
    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["days"]
        return timezone.now() + timedelta(days=days) if days else None

    @property
    def guards(self) -> dict[str, str]:
        return dict.fromkeys(self.cleaned_data["mask"], "mask")

    @property
    def monthly_limit_nano_usd(self) -> int | None:
        limit: Decimal | None = self.cleaned_data["monthly_limit"]
        return None if limit is None else int(limit * NANO_PER_USD)
