"""The form in which a creator sets or announces a price: dollars and multipliers into the integers of `set_price`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

from django import forms

from billing.pricing import BASIS_POINTS
from marketplace.catalog.models import (
    MAX_CLASS_BPS,
    MAX_FREE_NANO_USD,
    MAX_PER_PREDICTION_NANO_USD,
    MAX_PRICE_MICRO_USD_PER_MTOK,
    MIN_CLASS_BPS,
    Price,
    Version,
)
from marketplace.web.forms import NANO_PER_USD, PlainForm

MICRO_PER_USD = 10**6


def _per_million(label: str, *, required: bool = True, help_text: str = "") -> forms.DecimalField:
    return forms.DecimalField(
        label=label,
        required=required,
        min_value=Decimal(0),
        max_value=Decimal(MAX_PRICE_MICRO_USD_PER_MTOK) / MICRO_PER_USD,
        decimal_places=6,
        help_text=help_text,
    )


def _multiplier(label: str) -> forms.DecimalField:
    return forms.DecimalField(
        label=label,
        required=False,
        min_value=Decimal(MIN_CLASS_BPS) / BASIS_POINTS,
        max_value=Decimal(MAX_CLASS_BPS) / BASIS_POINTS,
        decimal_places=4,
        initial=1,
    )


def _dollars(label: str, most_nano_usd: int, *, required: bool = False) -> forms.DecimalField:
    return forms.DecimalField(
        label=label,
        required=required,
        min_value=Decimal(0),
        max_value=Decimal(most_nano_usd) / NANO_PER_USD,
        decimal_places=9,
        initial=0,
    )


class PriceForm(PlainForm):
    """Dollars per million tokens, multipliers of the latency classes, what is free, for which version, from when."""

    FIELD_NAMES: ClassVar = {  # argument of `set_price` → field
        "input_micro_usd_per_mtok": "input",
        "cached_input_micro_usd_per_mtok": "cached_input",
        "output_micro_usd_per_mtok": "output",
        "embedding_micro_usd_per_mtok": "embedding",
        "per_prediction_nano_usd": "per_prediction",
        "interactive_bps": "interactive",
        "batch_bps": "batch",
        "monthly_free_nano_usd": "free_monthly",
        "intro_free_nano_usd": "free_once",
        "effective_at": "starts",
    }
    RATES: ClassVar = ("input", "cached_input", "output", "embedding", "per_prediction")
    TERMS: ClassVar = ("interactive", "batch", "free_monthly", "free_once")
    SCOPE: ClassVar = ("version", "starts")

    input = _per_million("Input")
    cached_input = _per_million("Cached input")
    output = _per_million("Output")
    embedding = _per_million("Embeddings", required=False)
    per_prediction = _dollars("Per prediction", MAX_PER_PREDICTION_NANO_USD, required=True)
    interactive = _multiplier("Answered first (priority), times")
    batch = _multiplier("Answered later (flex), times")
    free_monthly = _dollars("Free per month, dollars", MAX_FREE_NANO_USD)
    free_once = _dollars("Free once, dollars", MAX_FREE_NANO_USD)
    version = forms.TypedChoiceField(label="For", required=False, coerce=int, empty_value=None)
    starts = forms.DateTimeField(
        label="From (UTC)",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text="Empty: from the next prediction on.",
    )

    def __init__(self, *args: Any, versions: Sequence[Version], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.versions = {version.number: version for version in versions}
        choices = [("", "Every version")] + [(str(number), f"Version {number} alone") for number in self.versions]
        self.fields["version"].choices = choices  # type: ignore[attr-defined]

    @property
    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        """Return the fields in the rows that the page shows, each with its heading."""
        headings = (
            ("Dollars per million tokens, and per prediction", self.RATES),
            ("Latency classes, and what each customer gets for free", self.TERMS),
            ("Where and when", self.SCOPE),
        )
        return [(heading, [self[name] for name in names]) for heading, names in headings]

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        plain, cached = cleaned.get("input"), cleaned.get("cached_input")
        if plain is not None and cached is not None and cached > plain:
            self.add_error("cached_input", "Cached input must not cost more than input.")
        return cleaned

    def amounts(self) -> dict[str, Any]:
        """Return the keyword arguments of `set_price`, in its integer units."""
        data = self.cleaned_data

        def scaled(name: str, unit: int, otherwise: int = 0) -> int:
            return otherwise if data[name] is None else int(data[name] * unit)

        starts: datetime | None = data["starts"]
        return {
            "input_micro_usd_per_mtok": scaled("input", MICRO_PER_USD),
            "cached_input_micro_usd_per_mtok": scaled("cached_input", MICRO_PER_USD),
            "output_micro_usd_per_mtok": scaled("output", MICRO_PER_USD),
            "embedding_micro_usd_per_mtok": None if data["embedding"] is None else scaled("embedding", MICRO_PER_USD),
            "per_prediction_nano_usd": scaled("per_prediction", NANO_PER_USD),
            "interactive_bps": scaled("interactive", BASIS_POINTS, BASIS_POINTS),
            "batch_bps": scaled("batch", BASIS_POINTS, BASIS_POINTS),
            "monthly_free_nano_usd": scaled("free_monthly", NANO_PER_USD),
            "intro_free_nano_usd": scaled("free_once", NANO_PER_USD),
            "version": self.versions.get(data["version"]),
            "effective_at": starts and starts.replace(tzinfo=UTC),
        }


def price_initial(price: Price | None) -> dict[str, Decimal | None]:
    """Return the form's values for the price in force, so that a new one starts from it."""
    if price is None:
        return {}

    def per_million(amount: int | None) -> Decimal | None:
        return None if amount is None else Decimal(amount) / MICRO_PER_USD

    return {
        "input": per_million(price.input_micro_usd_per_mtok),
        "cached_input": per_million(price.cached_input_micro_usd_per_mtok),
        "output": per_million(price.output_micro_usd_per_mtok),
        "embedding": per_million(price.embedding_micro_usd_per_mtok),
        "per_prediction": Decimal(price.per_prediction_nano_usd) / NANO_PER_USD,
        "interactive": Decimal(price.interactive_bps) / BASIS_POINTS,
        "batch": Decimal(price.batch_bps) / BASIS_POINTS,
        "free_monthly": Decimal(price.monthly_free_nano_usd) / NANO_PER_USD,
        "free_once": Decimal(price.intro_free_nano_usd) / NANO_PER_USD,
    }
