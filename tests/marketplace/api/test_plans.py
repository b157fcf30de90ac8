"""Plans of the fleet over the API: files in, a plan asked for, lists, one plan with its result and review."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest

from marketplace.accounts.models import User
from marketplace.planning.models import Plan, PlanFile
from marketplace.planning.services import MAX_BYTES
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.api.test_operators import person, staff
from tests.marketplace.catalog.factories import make_base, make_organization
from tests.marketplace.planning.plans import FILES, document, made, review

__all__ = ["person", "staff"]
pytestmark = pytest.mark.django_db


def add(api: Api, query: str, content: bytes = b"{}") -> Any:
    return api.client.post(
        f"/api/v1/platform/plan-files?{query}", content, content_type="application/octet-stream", headers=api.headers
    )


def test_files_are_added_and_a_plan_is_asked_for(staff: Api, person: User) -> None:
    assert error_of(staff.post("platform/plans"), 409)["code"] == "files_missing"
    for kind, subject, content in FILES:
        answer = add(staff, f"kind={kind}&subject={subject}", content)
        assert answer.status_code == 201 and answer.json()["sha256"] == hashlib.sha256(content).hexdigest()
    shown = staff.get("platform/plan-files?limit=2").json()
    assert len(shown["results"]) == 2 and shown["next"] and "content" not in shown["results"][0]
    asked = staff.post("platform/plans")
    assert asked.status_code == 201 and asked.json()["state"] == "waiting" and asked.json()["weekly"] is False
    assert error_of(staff.post("platform/plans"), 409)["code"] == "plan_waits"
    assert [row["id"] for row in staff.get("platform/plans").json()["results"]] == [asked.json()["id"]]
    assert Plan.objects.get().by == person.pk


@pytest.mark.parametrize(
    ("query", "content", "field"),
    [
        ("kind=wishes", b"{}", "kind"),
        ("", b"{}", "kind"),
        ("kind=profile", b"{}", "subject"),
        ("kind=prices&subject=l4", b"{}", "subject"),
        ("kind=prices", b"", "file"),
        ("kind=prices", b"\xff", "file"),
    ],
)
def test_a_file_that_is_none_is_refused(staff: Api, query: str, content: bytes, field: str) -> None:
    assert error_of(add(staff, query, content), 400)["field"] == field
    assert not PlanFile.objects.exists()


def test_a_file_that_is_too_large_is_refused_unread(staff: Api) -> None:
    error_of(add(staff, "kind=prices", b"x" * (MAX_BYTES + 1)), 413)
    assert not PlanFile.objects.exists()


def test_one_plan_has_its_result_and_review(staff: Api) -> None:
    plan = made(review=review())
    shown = staff.get(f"platform/plans/{plan.pk}").json()
    assert shown["result"] == document() and shown["review"] == review() and shown["weekly"] is True
    (line,) = staff.get("platform/plans").json()["results"]
    assert line["state"] == "done" and "result" not in line
    error_of(staff.get(f"platform/plans/{uuid.uuid4()}"), 404)


@pytest.mark.django_db(transaction=True)
def test_the_usage_that_a_plan_would_be_made_from_now(staff: Api) -> None:
    base = make_base()
    shown = staff.get("platform/usage-file").json()
    assert shown["format"] == 1 and shown["hours"] == 0 and shown["bases"].keys() == {base.fingerprint}


def test_customers_have_no_plans() -> None:
    api, plan = Api.of(make_organization("acme")), made()
    for path in ("plans", f"plans/{plan.pk}", "plan-files", "usage-file"):
        error_of(api.get(f"platform/{path}"), 403)
    error_of(api.post("platform/plans"), 403)
    error_of(add(api, "kind=prices"), 403)
    assert Plan.objects.count() == 1 and not PlanFile.objects.exists()
