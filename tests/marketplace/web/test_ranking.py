"""The order of landing page and catalogue, the shelf of new models, and the page of the formula."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from marketplace.catalog.models import Model, Standing, Version
from marketplace.standing import formula
from marketplace.standing.services import rank_models
from marketplace.web.model_cards import SHELF
from marketplace.web.views.public import LANDING_SIZE
from tests.marketplace.catalog.factories import make_model, make_organization, make_version
from tests.marketplace.evals.factories import make_evaluation

pytestmark = pytest.mark.django_db


def sold(slug: str, *, correct: int | None = None, days_ago: int = 90, state: str = "published") -> Model:
    version = make_version(make_model(make_organization(), slug=slug, title=slug.title()), state)
    at = timezone.now() - timedelta(days=days_ago)
    Version.objects.filter(pk=version.pk).update(published_at=at)
    Standing.objects.filter(pk=version.model_id).update(listed_at=at)
    if correct is not None:
        make_evaluation(version, rows=100, correct=correct, base_correct=0)
    return version.model


def names(path: str) -> list[str]:
    """The models of a page, in its order."""
    html = Client().get(path).content.decode()
    return re.findall(r'class="card model-card" href="/models/[-a-z0-9]+/([-a-z0-9]+)"', html)


def test_landing_page_and_catalogue_are_in_the_order_of_standing() -> None:
    for number in range(9):
        sold(f"m{number}", correct=10 + 4 * number)
    rank_models()
    order = [f"m{number}" for number in reversed(range(9))]
    assert names("/") == order[:LANDING_SIZE]
    assert names("/models/") == names("/models/?order=ranked") == names("/models/?q=&industry=") == order
    assert names("/models/?order=name") != order


def test_a_strangers_copy_reaches_no_page_before_it_is_published() -> None:
    sold("original")
    for state in set(Version.State.values) - {"published"}:
        sold(f"copy-{state}".replace("_", "-"), correct=100, days_ago=0, state=state)
    rank_models()
    for path in ("/", "/models/", "/models/?order=newest", "/models/?q=copy", "/models/?order=updated"):
        assert not [name for name in names(path) if name.startswith("copy")], path


def test_a_published_copy_is_behind_its_original_and_on_the_shelf_alone() -> None:
    for number in range(LANDING_SIZE):
        sold(f"m{number}")
    sold("copy", days_ago=0)
    rank_models()
    assert names("/") == [*(f"m{number}" for number in range(LANDING_SIZE)), "copy"]
    assert "Drawn each day, not for sale" in Client().get("/").content.decode()


def test_new_models_have_a_bounded_part_of_the_page_and_one_creator_has_one_of_it() -> None:
    for number in range(24):
        sold(f"old{number}")
    crowd = make_organization("crowd")
    for number in range(10):
        sold(f"new{number}", days_ago=1)
        version = make_version(make_model(crowd, slug=f"crowd{number}"))
        Version.objects.filter(pk=version.pk).update(published_at=timezone.now())
    rank_models()
    for path in ("/", "/models/"):
        new = [name for name in names(path) if not name.startswith("old")]
        assert len(new) == SHELF and len([name for name in new if name.startswith("crowd")]) <= 1
    assert len(names("/")) == LANDING_SIZE + SHELF
    for path in ("/models/?page=2", "/models/?order=newest", "/models/?q=old1"):
        assert "not for sale" not in Client().get(path).content.decode()


def test_the_page_of_the_formula_says_the_figures_of_the_task() -> None:
    html = " ".join(Client().get("/ranking").content.decode().split())
    for figure in (
        f"<strong>{formula.QUALITY_POINTS:.0f}</strong> quality",
        f"<strong>{formula.DEMAND_POINTS:.0f}</strong> demand",
        f"{formula.CARD_RIPENS.days} days after its first use",
        f"half of its weight in {formula.HALF_LIFE_WEEKS:.0f} weeks",
        f"D / (D + {formula.HALF_DEMAND:.0f})",
        "$31",
    ):
        assert figure in html, figure
    assert "A place cannot be bought" in html


def test_a_model_page_says_what_its_place_stands_on() -> None:
    model = sold("triage", correct=80)
    rank_models()
    Standing.objects.filter(pk=model.pk).update(payers=37, weeks=10, served=19_999, lost=1)
    path = f"/models/{model.organization.slug}/triage"
    html = " ".join(Client().get(path).content.decode().split())
    assert "place 1" in html and "<strong>25+</strong> paying cards, in 8+ weeks" in html
    assert (
        "<strong>99.9 %</strong> of calls answered" in html and "<strong>71.1 %</strong> or better, on 100 rows" in html
    )
    assert "37" not in re.sub(r"[0-9a-f]{8,}|\d{4,}", "", html.partition("Standing")[2].partition("Price")[0])
    Model.objects.filter(pk=model.pk).update(visibility=Model.Visibility.UNLISTED)
    assert "A place cannot be bought" not in Client().get(path).content.decode()
