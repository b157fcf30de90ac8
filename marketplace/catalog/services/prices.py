"""Prices of models and versions: rows that begin at a time and never change."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from billing.pricing import BASIS_POINTS
from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.catalog.models import Model, Price, Version
from marketplace.catalog.services.listings import clean

MAX_ANNOUNCED = 20  # prices of one model that have not begun
MOST_AHEAD = timedelta(days=366)


@transaction.atomic
def set_price(
    *,
    model: Model,
    input_micro_usd_per_mtok: int,
    output_micro_usd_per_mtok: int,
    cached_input_micro_usd_per_mtok: int | None = None,
    embedding_micro_usd_per_mtok: int | None = None,
    per_prediction_nano_usd: int = 0,
    interactive_bps: int = BASIS_POINTS,
    batch_bps: int = BASIS_POINTS,
    monthly_free_nano_usd: int = 0,
    intro_free_nano_usd: int = 0,
    version: Version | None = None,
    effective_at: datetime | None = None,
) -> Price:
    """Add a price, which holds from the next prediction on, or from `effective_at`. Nothing changes it afterwards.

    It is that of one version, or of every version without a price of its own. Cached input costs as much as input
    unless said. Raises InvalidInput for a negative or excessive amount, cached input dearer than input, a multiplier
    out of range, or a time that is past or too far ahead; Conflict past the limit of announced prices.
    """
    if cached_input_micro_usd_per_mtok is None:
        cached_input_micro_usd_per_mtok = input_micro_usd_per_mtok
    if cached_input_micro_usd_per_mtok > input_micro_usd_per_mtok:
        raise InvalidInput("must not be above the input price", field="cached_input_micro_usd_per_mtok")
    if version is not None and version.model_id != model.pk:
        raise InvalidInput("is not a version of this model", field="version")
    price = Price(
        model=model,
        version=version,
        input_micro_usd_per_mtok=input_micro_usd_per_mtok,
        cached_input_micro_usd_per_mtok=cached_input_micro_usd_per_mtok,
        output_micro_usd_per_mtok=output_micro_usd_per_mtok,
        embedding_micro_usd_per_mtok=embedding_micro_usd_per_mtok,
        per_prediction_nano_usd=per_prediction_nano_usd,
        interactive_bps=interactive_bps,
        batch_bps=batch_bps,
        monthly_free_nano_usd=monthly_free_nano_usd,
        intro_free_nano_usd=intro_free_nano_usd,
    )
    if effective_at is not None:
        _check_time(model, effective_at)
        price.effective_at = effective_at
    clean(price)
    price.save(force_insert=True)
    price.refresh_from_db(fields=["effective_at"])
    terms = {"input": input_micro_usd_per_mtok, "output": output_micro_usd_per_mtok, "call": per_prediction_nano_usd}
    audit.record(organization=model.organization, act="price.set", subject=model.slug, data=terms)
    return price


def _check_time(model: Model, effective_at: datetime) -> None:
    now = timezone.now()
    if not now < effective_at <= now + MOST_AHEAD:
        raise InvalidInput("must be in the future, within a year", field="effective_at")
    if Price.objects.filter(model=model, effective_at__gt=now).count() >= MAX_ANNOUNCED:
        raise Conflict(f"{MAX_ANNOUNCED} prices of this model wait for their day", code="too_many_prices")
