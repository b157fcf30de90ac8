"""Prices: when they begin, whose they are, and that nothing changes them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, ProgrammingError, connection, transaction
from django.utils import timezone

from billing.pricing import TokenUsage, cost_nano_usd
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.catalog import selectors, services
from marketplace.catalog.models import Model, Price
from tests.database import as_owner
from tests.marketplace.catalog.factories import make_model, make_version

pytestmark = pytest.mark.django_db


def price(model: Model, amount: int, **terms: object) -> Price:
    return services.set_price(model=model, input_micro_usd_per_mtok=amount, output_micro_usd_per_mtok=amount, **terms)


def begun(announced: Price) -> None:
    """Let an announced price begin, as time does."""
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE catalog_price DISABLE TRIGGER catalog_price_guard")
        cursor.execute("UPDATE catalog_price SET effective_at = clock_timestamp() WHERE id = %s", [announced.pk])
        cursor.execute("ALTER TABLE catalog_price ENABLE TRIGGER catalog_price_guard")


def test_the_price_of_a_version_goes_before_that_of_its_model_and_the_latest_before_earlier_ones() -> None:
    model = make_model()
    one, two = make_version(model), make_version(model)
    price(model, 5)
    own = price(model, 7, version=two)
    later = price(model, 6)
    assert selectors.price_of(version=one) == later
    assert selectors.price_of(version=two) == own
    assert selectors.published_models().get().facts.price == own  # `org/slug` means version 2
    assert [row.standing.output_micro_usd_per_mtok for row in selectors.published_models(ordering="price")] == [7]


def test_an_announced_price_is_shown_and_holds_from_its_time_on() -> None:
    model = make_model()
    version = make_version(model)
    now = price(model, 5)
    announced = price(model, 9, effective_at=timezone.now() + timedelta(days=3))
    assert selectors.price_of(version=version) == now
    assert list(selectors.announced_prices(model=model)) == [announced]
    begun(announced)
    assert selectors.price_of(version=version) == announced
    assert not selectors.announced_prices(model=model).exists()
    assert list(selectors.prices_of(model=model)[:2]) == [announced, now]


def test_a_draft_without_a_price_in_force_is_not_published_by_an_announced_one() -> None:
    model = make_model()
    price(model, 9, effective_at=timezone.now() + timedelta(days=3))
    assert selectors.owned_model(organization=model.organization, org_slug=model.organization.slug, slug=model.slug)
    assert model.prices.count() == 1
    listed = selectors.models_of(organization=model.organization).get()
    assert listed.facts.price is None


@pytest.mark.parametrize(
    "terms",
    [
        {"interactive_bps": 99},
        {"batch_bps": 100_001},
        {"monthly_free_nano_usd": -1},
        {"intro_free_nano_usd": 10**12 + 1},
        {"embedding_micro_usd_per_mtok": 10**10 + 1},
        {"effective_at": timezone.now() - timedelta(seconds=1)},
        {"effective_at": timezone.now() + timedelta(days=400)},
    ],
)
def test_terms_out_of_range_set_no_price(terms: dict[str, object]) -> None:
    model = make_model()
    with pytest.raises(InvalidInput) as refused:
        price(model, 5, **terms)
    assert refused.value.field == next(iter(terms))
    assert not model.prices.exists()


def test_a_price_of_another_models_version_is_refused_by_service_and_database() -> None:
    model, foreign = make_model(), make_version(make_model())
    with pytest.raises(InvalidInput):
        price(model, 5, version=foreign)
    with pytest.raises(IntegrityError, match="not one of the price's model"), transaction.atomic():
        Price.objects.create(
            model=model,
            version=foreign,
            input_micro_usd_per_mtok=1,
            cached_input_micro_usd_per_mtok=1,
            output_micro_usd_per_mtok=1,
        )
    assert not model.prices.exists()


def test_the_database_refuses_to_change_delete_or_backdate_a_price() -> None:
    row = price(make_model(), 5)
    for attempt in (
        lambda: Price.objects.filter(pk=row.pk).update(output_micro_usd_per_mtok=0),
        lambda: Price.objects.filter(pk=row.pk).delete(),
        lambda: Price.objects.filter(pk=row.pk).update(effective_at=timezone.now()),
    ):
        with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
            attempt()
        with pytest.raises(IntegrityError, match="never changes"), transaction.atomic(), as_owner():
            attempt()
    with pytest.raises(IntegrityError, match="begins now or later"), transaction.atomic():
        Price.objects.create(
            model=row.model,
            input_micro_usd_per_mtok=1,
            cached_input_micro_usd_per_mtok=1,
            output_micro_usd_per_mtok=1,
            effective_at=timezone.now() - timedelta(days=1),
        )
    row.refresh_from_db()
    assert (row.output_micro_usd_per_mtok, Price.objects.count()) == (5, 1)


def test_announced_prices_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marketplace.catalog.services.prices.MAX_ANNOUNCED", 2)
    model = make_model()
    for days in (1, 2):
        price(model, 5, effective_at=timezone.now() + timedelta(days=days))
    with pytest.raises(Conflict):
        price(model, 5, effective_at=timezone.now() + timedelta(days=3))
    assert model.prices.count() == 2


def test_a_latency_class_multiplies_the_price_of_standard() -> None:
    row = price(make_model(), 1_000_000, interactive_bps=15_000, batch_bps=5_000, per_prediction_nano_usd=100)
    costs = [cost_nano_usd(row.point(name), TokenUsage(10, 0, 0)) for name in ("batch", "standard", "interactive")]
    assert costs == [5_050, 10_100, 15_150]
