"""Evaluations through the control API: public figures with receipts, and no way to hand a score in."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator

from marketplace.api import urls
from marketplace.catalog.models import Evaluation, Model
from marketplace.evals.models import EvalRun, EvalSet
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_model, make_organization, make_version
from tests.marketplace.evals.factories import make_evaluation

pytestmark = pytest.mark.django_db

FILTERS = {"min_accuracy_bps"}  # of the catalogue: what was measured is compared with it
SCORES = re.compile(r"correct|accuracy|score(?!r)|f1|right|evaluation", re.IGNORECASE)


def names_in(schema: Any, components: dict[str, Any], seen: frozenset[str] = frozenset()) -> set[str]:
    """The names of all properties of a schema, of those that it refers to as well."""
    if isinstance(schema, list):
        return set().union(*(names_in(one, components, seen) for one in schema))
    if not isinstance(schema, dict):
        return set()
    reference = str(schema.get("$ref", "")).rpartition("/")[2]
    if reference:
        return set() if reference in seen else names_in(components[reference], components, seen | {reference})
    names = set(schema.get("properties", {}))
    for value in schema.values():
        names |= names_in(value, components, seen)
    return names


def test_no_operation_takes_a_score() -> None:
    document: Any = SchemaGenerator().get_schema(request=None, public=True)
    components, looked_at = document["components"]["schemas"], 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            taken = names_in(operation.get("requestBody", {}), components)
            taken |= {one["name"] for one in operation.get("parameters", [])} - FILTERS
            looked_at += len(taken)
            assert not {name for name in taken if SCORES.search(name)}, f"{method} {path}"
            assert "evaluation" not in path or method == "get", f"{method} {path}"
    assert looked_at > 100
    # The schema has every route, so nothing is left out above.
    routes = {one.name for one in urls.urlpatterns if getattr(one.callback.view_class, "schema", None) is not None}
    assert len(document["paths"]) >= len(routes) - 1


def test_a_posted_score_changes_nothing() -> None:
    version = make_version(make_model(make_organization("acme")))
    api = Api.of(make_organization("intarsia"))
    body = {"dataset": "held-out", "rows": 60, "correct": 60, "base_correct": 0}
    assert api.post("models/acme/triage/evaluations", body).status_code == 405
    owner = Api.of(version.model.organization)
    owner.call("PATCH", "models/acme/triage", {"title": "New", "evaluation": body, "correct": 60})
    assert not Evaluation.objects.exists()
    assert Api().get("models/acme/triage").json()["evaluation"] is None


def test_figures_are_public_with_interval_and_calls() -> None:
    version = make_version(make_model(make_organization("acme")))
    found = make_evaluation(version, rows=3, correct=2, base_correct=1)
    shown = Api().get("models/acme/triage").json()["evaluation"]
    assert (shown["version"], shown["rows"], shown["correct"], shown["base_correct"]) == (version.number, 3, 2, 1)
    assert (shown["low"], shown["high"]) == (0.20766, 0.938508)
    assert Api().get("models/acme/triage/evaluations").json()["results"] == [shown]
    calls = Api().get(f"evaluations/{found.run_id}/calls").json()["results"]
    assert [(one["row"], one["base"], one["right"]) for one in calls][:3] == [
        (1, False, True),
        (1, True, True),
        (2, False, True),
    ]
    assert calls[-1]["receipt_sha256"] is None and set(calls[0]) == {
        "row",
        "base",
        "right",
        "prediction_id",
        "receipt_sha256",
    }
    # A prediction that is none of the run's is not shown here, and one without a charge has no document.
    error_of(Api().get(f"evaluations/{found.run_id}/receipts/{uuid.uuid4()}"), 404)
    error_of(Api().get(f"evaluations/{found.run_id}/receipts/{calls[0]['prediction_id']}"), 404)


@pytest.mark.parametrize("hide", ["private", "retired", "failed"])
def test_what_is_not_public_has_no_public_run(hide: str) -> None:
    version = make_version(make_model(make_organization("acme")))
    found = make_evaluation(version, rows=1, correct=1, base_correct=0)
    if hide == "private":
        Model.objects.update(visibility="private")
    elif hide == "retired":
        type(version).objects.update(state="retired")
    else:
        EvalRun.objects.update(state="failed")
    for path in ("calls", f"receipts/{uuid.uuid4()}"):
        error_of(Api().get(f"evaluations/{found.run_id}/{path}"), 404)
        error_of(Api.of(make_organization(f"other-{path[:5]}")).get(f"evaluations/{found.run_id}/{path}"), 404)


def test_sets_and_runs_are_their_organizations_own() -> None:
    version = make_version(make_model(make_organization("acme")))
    found = make_evaluation(version, rows=10, correct=9, base_correct=2)
    stored = EvalSet.objects.get()
    owner, other = Api.of(version.model.organization), Api.of(make_organization("other"))
    assert owner.get(f"eval-runs/{found.run_id}").json()["state"] == "done"
    assert owner.get("models/acme/triage/eval-runs").json()["results"][0]["calls"] == 20
    assert owner.get("models/acme/triage/eval-sets").json()["results"][0]["scorer"] == stored.scorer
    quote = owner.get(f"eval-sets/{stored.pk}/quote").json()
    assert quote["version"] == version.number and quote["worst_case_nano_usd"] > 0
    assert error_of(owner.post(f"eval-sets/{stored.pk}/runs", {}), 402)["code"] == "insufficient_funds"
    for method, path in (
        ("GET", f"eval-sets/{stored.pk}"),
        ("GET", f"eval-sets/{stored.pk}/quote"),
        ("POST", f"eval-sets/{stored.pk}/runs"),
        ("GET", f"eval-runs/{found.run_id}"),
        ("GET", "models/acme/triage/eval-runs"),
        ("GET", "models/acme/triage/eval-sets"),
    ):
        error_of(other.call(method, path, {} if method == "POST" else None), 404)
    assert EvalRun.objects.count() == 1
