"""The order of the catalogue in the API, and what it tells of a standing."""

from __future__ import annotations

import pytest

from marketplace.catalog.models import Model, Standing
from marketplace.standing.public import MIN_CALLS, PAYER_STEPS, WEEK_STEPS
from marketplace.standing.services import rank_models
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_model, make_organization, make_version
from tests.marketplace.evals.factories import make_evaluation

pytestmark = pytest.mark.django_db


def test_a_program_reads_the_catalogue_by_standing_in_pages() -> None:
    slugs = [f"m{number}" for number in range(7)]
    for number, slug in enumerate(slugs):
        version = make_version(make_model(make_organization(), slug=slug))
        # The first have the worst measurements; the last was not measured.
        if number < 6:
            make_evaluation(version, rows=100, correct=5 * number, base_correct=0)
    rank_models()
    api = Api(None)
    found: list[str] = []
    address = "models?order=ranked&limit=2"
    while address:
        page = api.get(address).json()
        found += [model["slug"] for model in page["results"]]
        address = (page["next"] or "").partition("/api/v1/")[2]
    assert found == slugs[::-1]
    places = [model["standing"]["place"] for model in api.get("models?order=ranked").json()["results"]]
    assert places == list(range(1, 8))
    assert [one["slug"] for one in api.get("models").json()["results"]] == slugs[::-1], "newest first, as before"
    assert error_of(api.get("models?order=price"), 400)


def test_payers_and_weeks_are_told_in_steps_so_that_no_customer_shows() -> None:
    organization = make_organization("acme")
    model = make_version(make_model(organization)).model
    api = Api(None)

    def standing(**facts: object) -> dict[str, object]:
        Standing.objects.filter(pk=model.pk).update(**facts)
        found = api.get("models/acme/triage").json()["standing"]
        assert isinstance(found, dict)
        return found

    assert standing() == {
        "place": None,
        "quality_low": None,
        "quality_rows": None,
        "uptime": None,
        "payers_at_least": 0,
        "weeks_at_least": 0,
    }
    for payers in range(PAYER_STEPS[0]):
        assert standing(payers=payers, weeks=9) == standing(payers=0, weeks=0), "a handful shows"
    assert standing(payers=9, weeks=9) == standing(payers=5, weeks=8)
    told = {(standing(payers=n, weeks=n)["payers_at_least"], n) for n in (10, 24, 25, 999, 1_000, 5_000)}
    assert told == {(10, 10), (10, 24), (25, 25), (250, 999), (1_000, 1_000), (1_000, 5_000)}
    assert standing(weeks=60)["weeks_at_least"] == WEEK_STEPS[-1]
    assert standing(served=MIN_CALLS - 2, lost=1)["uptime"] is None
    assert standing(served=99, lost=1)["uptime"] == 0.99
    Model.objects.filter(pk=model.pk).update(visibility=Model.Visibility.UNLISTED)
    assert api.get("models/acme/triage").json()["standing"] is None
