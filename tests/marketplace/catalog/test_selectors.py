"""Search, filters, order and what a listing shows."""

from __future__ import annotations

from typing import Any

import pytest

from marketplace.accounts.models import Organization
from marketplace.catalog import selectors, services
from marketplace.catalog.models import Model, ModelFacts
from marketplace.catalog.search import Filters
from marketplace.catalog.services.listings import ListingText
from marketplace.publishing import services as publishing
from tests.marketplace.catalog.factories import make_base, make_model, make_organization, make_version
from tests.marketplace.evals.factories import make_evaluation

pytestmark = pytest.mark.django_db


def listing(slug: str, *, price: int = 100, published: bool = True, base=None, **text: object) -> Model:
    organization = make_organization()
    model = services.create_model(
        organization=organization,
        slug=slug,
        base_model=base or make_base(),
        text=ListingText(**{"title": slug.title(), **text}),
    )
    if published:
        make_version(model)
        services.set_price(model=model, input_micro_usd_per_mtok=1, output_micro_usd_per_mtok=price)
    return model


def slugs(*, query: str = "", ordering: str = "ranked", **filters: Any) -> list[str]:
    found = selectors.published_models(query=query, filters=Filters(**filters), ordering=ordering)
    return [model.slug for model in found]


def test_search_finds_words_of_title_tags_summary_and_half_words() -> None:
    listing("triage", title="Patient triage", summary="Sorts messages by urgency.", tags=["health"])
    listing("tickets", title="Ticket routing", summary="Mentions patients once.", tags=["telecom"])
    assert slugs(query="urgency") == ["triage"]
    assert slugs(query="health") == ["triage"]
    assert slugs(query="routing tickets") == ["tickets"]
    assert slugs(query="sorting") == ["triage"], "stems"
    assert slugs(query="tria") == ["triage"]
    assert slugs(query="patient", ordering="relevance") == ["triage", "tickets"]
    assert slugs(query="patient -triage") == ["tickets"]
    assert slugs(query="nothing") == []


def test_filters_and_orders() -> None:
    other = make_base("cd" * 32, name="other")
    listing("a", price=300, industry="Finance", tags=["json"])
    listing("b", price=100, industry="health")
    listing("c", price=200, industry="finance", base=other)
    assert slugs(ordering="newest") == ["c", "b", "a"]
    assert sorted(slugs(industry="FINANCE")) == ["a", "c"]
    assert slugs(base="other") == slugs(base=other.fingerprint) == ["c"]
    assert slugs(tag="JSON") == ["a"]
    assert slugs(ordering="price") == ["b", "c", "a"]
    assert sorted(slugs(ordering="name")) == ["a", "b", "c"]
    services.update_model(model=Model.objects.get(slug="a"), text=ListingText(summary="new"))
    assert slugs(ordering="updated")[0] == "a"


def test_only_public_models_with_a_published_version_are_listed() -> None:
    listing("draft", published=False)
    for visibility in Model.Visibility.values:
        listing(f"x-{visibility}", visibility=visibility)
    gone = listing("gone")
    publishing.retire_version(version=gone.versions.get())
    assert slugs() == ["x-public"]


def test_facts_are_the_newest_price_published_version_and_its_evaluation() -> None:
    model = listing("triage")
    newest = make_version(model)
    make_version(model, state="verified")
    for version, correct in ((model.versions.get(number=1), 1), (newest, 2), (newest, 3)):
        make_evaluation(version, rows=10, correct=correct, base_correct=0)
    services.set_price(model=model, input_micro_usd_per_mtok=7, output_micro_usd_per_mtok=7)
    facts = selectors.published_models().get().facts
    assert facts.price is not None and facts.price.input_micro_usd_per_mtok == 7
    assert facts.newest == newest
    assert facts.evaluation is not None and facts.evaluation.correct == 3


def test_a_draft_has_no_facts() -> None:
    model = make_model()
    found = selectors.owned_model(organization=model.organization, org_slug=model.organization.slug, slug=model.slug)
    assert found is not None
    assert found.facts == ModelFacts(None, None, None)


def test_a_search_finds_what_a_listing_says_now() -> None:
    model = listing("census")
    assert slugs(query="otters") == []
    Model.objects.filter(pk=model.pk).update(summary="Counts otters.", title="River-life census")
    assert slugs(query="otters") == slugs(query="river-li") == slugs(query="life cen") == [model.slug]
    Organization.objects.filter(pk=model.organization_id).update(slug="erased-organization", name="Erased")
    assert slugs(query="erased-organization") == [model.slug] and slugs(query=model.organization.slug) == []
