"""Forms: text from strangers into typed values. A form shows refused values again, with the reason beside each."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

from django import forms
from django.utils import timezone

from billing.models.payments import MAX_TOP_UP_CENTS, MIN_TOP_UP_CENTS
from marketplace.accounts.models import ApiKey
from marketplace.catalog.models import MAX_PRICE_MICRO_USD_PER_MTOK
from protocol.proofs.documents import MAX_DOCUMENT_BYTES

NANO_PER_USD = 10**9
MICRO_PER_USD = 10**6
MAX_PER_PREDICTION_USD = 100

SCOPE_LABELS = {
    ApiKey.Scope.PREDICT: "Predict: call models and spend the wallet",
    ApiKey.Scope.PUBLISH: "Publish: upload, price, publish and retire models",
    ApiKey.Scope.ACCOUNT: "Account: read wallet and usage, manage keys, top up",
}


class PlainForm(forms.Form):
    """Marks faulty fields for assistive technology, and leaves the colon off labels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)


class ReceiptForm(PlainForm):
    """A receipt file to check."""

    file = forms.FileField(label="Receipt file", help_text="A file of the page of a prediction, or of the API.")

    def clean_file(self) -> bytes:
        """Return the file's bytes; a file larger than any receipt is refused unread."""
        found = self.cleaned_data["file"]
        if found.size > MAX_DOCUMENT_BYTES:
            raise forms.ValidationError(f"A receipt has at most {MAX_DOCUMENT_BYTES // 1024} KiB.")
        data: bytes = found.read()
        return data


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

    def __init__(self, *args: Any, allowed: frozenset[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(scope.value, SCOPE_LABELS[scope]) for scope in ApiKey.Scope if scope.value in allowed]
        self.fields["scopes"].choices = choices  # type: ignore[attr-defined]

    @property
    def expires_at(self) -> datetime | None:
        days = self.cleaned_data["days"]
        return timezone.now() + timedelta(days=days) if days else None

    @property
    def monthly_limit_nano_usd(self) -> int | None:
        limit: Decimal | None = self.cleaned_data["monthly_limit"]
        return None if limit is None else int(limit * NANO_PER_USD)


class TopUpForm(PlainForm):
    """Dollars to add to the wallet."""

    FIELD_NAMES: ClassVar = {"amount_cents": "amount"}  # argument of `start_top_up` → field

    amount = forms.DecimalField(
        label="Amount in dollars",
        min_value=Decimal(MIN_TOP_UP_CENTS) / 100,
        max_value=Decimal(MAX_TOP_UP_CENTS) / 100,
        decimal_places=2,
        initial=Decimal("25.00"),
    )

    @property
    def amount_cents(self) -> int:
        return int(self.cleaned_data["amount"] * 100)


def _per_million(label: str) -> forms.DecimalField:
    return forms.DecimalField(
        label=label,
        min_value=Decimal(0),
        max_value=Decimal(MAX_PRICE_MICRO_USD_PER_MTOK) / MICRO_PER_USD,
        decimal_places=6,
    )


class PriceForm(PlainForm):
    """Dollars per million tokens, and a flat price per prediction."""

    FIELD_NAMES: ClassVar = {  # argument of `set_price` → field
        "input_micro_usd_per_mtok": "input",
        "cached_input_micro_usd_per_mtok": "cached_input",
        "output_micro_usd_per_mtok": "output",
        "per_prediction_nano_usd": "per_prediction",
    }

    input = _per_million("Input")
    cached_input = _per_million("Cached input")
    output = _per_million("Output")
    per_prediction = forms.DecimalField(
        label="Per prediction",
        min_value=Decimal(0),
        max_value=Decimal(MAX_PER_PREDICTION_USD),
        decimal_places=9,
        initial=0,
    )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        plain, cached = cleaned.get("input"), cleaned.get("cached_input")
        if plain is not None and cached is not None and cached > plain:
            self.add_error("cached_input", "Cached input must not cost more than input.")
        return cleaned

    def amounts(self) -> dict[str, Any]:
        """Return the keyword arguments of `set_price`, in its integer units."""
        data = self.cleaned_data
        return {
            "input_micro_usd_per_mtok": int(data["input"] * MICRO_PER_USD),
            "cached_input_micro_usd_per_mtok": int(data["cached_input"] * MICRO_PER_USD),
            "output_micro_usd_per_mtok": int(data["output"] * MICRO_PER_USD),
            "per_prediction_nano_usd": int(data["per_prediction"] * NANO_PER_USD),
        }


class CalculatorForm(PlainForm):
    """One prediction's size, and how many a month."""

    prompt_tokens = forms.IntegerField(label="Prompt tokens", min_value=0, max_value=10**6, initial=120)
    answer_tokens = forms.IntegerField(label="Answer tokens", min_value=0, max_value=10**6, initial=24)
    predictions = forms.IntegerField(label="Predictions a month", min_value=1, max_value=10**9, initial=10_000)


class RevokeForm(PlainForm):
    """Why a version is revoked; kept with the version."""

    reason = forms.CharField(label="Reason", max_length=500)
