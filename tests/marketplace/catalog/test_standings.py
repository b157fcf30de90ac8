"""A listed model has a standing, and no other model has one, whatever is published, withdrawn or hidden."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import ProgrammingError, connection, transaction
from django.utils import timezone

from marketplace.catalog import selectors, services
from marketplace.catalog.models import Model, Standing, Version
from marketplace.catalog.services.listings import ListingText
from marketplace.catalog.standings import LAST_PLACE, UNKNOWN_SCORE
from marketplace.publishing import services as publishing
from marketplace.standing.services import rank_models
from tests.marketplace.catalog.factories import make_model, make_organization, make_version

pytestmark = pytest.mark.django_db
ORDERINGS = selectors.ORDERINGS


def listed() -> set[str]:
    """The slugs in every order of the catalogue, which are the same, and those that have a standing."""
    found = [{model.slug for model in selectors.published_models(ordering=one)} for one in ORDERINGS]
    assert all(one == found[0] for one in found)
    assert set(Standing.objects.values_list("model__slug", flat=True)) == found[0]
    return found[0]


def test_a_version_in_any_state_but_published_stands_nowhere() -> None:
    for state in Version.State.values:
        make_version(make_model(make_organization(), slug=state.replace("_", "-")), state)
    make_model(make_organization(), slug="without-a-version")
    assert listed() == {"published"}
    rank_models()
    assert listed() == {"published"}
    assert list(selectors.new_models(limit=9)) == list(selectors.published_models())


@pytest.mark.parametrize("visibility", [Model.Visibility.UNLISTED, Model.Visibility.PRIVATE])
def test_an_unlisted_or_private_model_stands_nowhere(visibility: str) -> None:
    model = make_version().model
    assert listed() == {"triage"}
    services.update_model(model=model, text=ListingText(visibility=visibility))
    assert listed() == set()
    rank_models()
    assert listed() == set() and not selectors.new_models(limit=9)
    services.update_model(model=model, text=ListingText(visibility=Model.Visibility.PUBLIC))
    assert listed() == {"triage"}


def test_a_model_leaves_with_its_last_published_version_and_is_not_new_when_it_is_back() -> None:
    first = make_version()
    long_ago = timezone.now() - timedelta(days=90)
    Version.objects.filter(pk=first.pk).update(published_at=long_ago)
    second = make_version(first.model)
    publishing.retire_version(version=first)
    assert listed() == {"triage"}
    publishing.revoke_version(version=second, reason="stolen")
    assert listed() == set()
    third = make_version(first.model, Version.State.VERIFIED)
    publishing.publish_version(version=third)
    assert listed() == {"triage"}
    assert Standing.objects.get().listed_at == long_ago
    rank_models()
    assert not selectors.new_models(limit=9)


def test_a_model_that_was_published_a_moment_ago_is_behind_the_others() -> None:
    make_version(make_model(make_organization(), slug="a"))
    rank_models()
    make_version(make_model(make_organization(), slug="b"))
    new = Standing.objects.get(model__slug="b")
    assert (new.place, new.score) == (LAST_PLACE, UNKNOWN_SCORE)
    assert [model.slug for model in selectors.published_models()] == ["a", "b"]


def test_the_platform_may_neither_add_nor_invent_a_standing() -> None:
    model = make_model()
    refused = pytest.raises(ProgrammingError, match="permission denied")
    with refused, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO catalog_standing (model_id) VALUES (%s)", [model.pk])
    assert not Standing.objects.exists()
