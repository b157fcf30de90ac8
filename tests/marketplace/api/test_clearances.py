"""Versions on checkpoints over the API: what each reader sees, and what each may say."""

from __future__ import annotations

import pytest
from django.utils import timezone

from marketplace.accounts.models import AuditEntry, User
from marketplace.catalog.models import BaseModel, Clearance, Version
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.api.test_operators import person, staff
from tests.marketplace.catalog.factories import make_model, make_organization, make_user, make_version
from tests.marketplace.vault.factories import make_replica

__all__ = ["person", "staff"]
pytestmark = pytest.mark.django_db
SMALLER = "ef" * 32


@pytest.fixture
def creator() -> User:
    return make_user("creator@example.com")


@pytest.fixture
def version(creator: User) -> Version:
    return make_version(make_model(make_organization("acme", creator), slug="triage"))


@pytest.fixture
def clearance(version: Version) -> Clearance:
    fields = {"name": "tiny-int4", "precision": "INT4", "config": {}, "context_length": 64, "is_reference": False}
    base = version.model.base_model
    checkpoint = BaseModel.objects.create(line=base.line, fingerprint=SMALLER, **fields)
    figures = {"rows": 50, "correct": 40, "reference_correct": 45, "same_answers": 42, "measured_at": timezone.now()}
    return Clearance.objects.create(
        version=version, checkpoint=checkpoint, state="failed", reason="it loses too much", **figures
    )


def precisions(api: Api) -> list[dict[str, object]]:
    found: list[dict[str, object]] = api.get("models/acme/triage/precisions").json()["results"]
    return found


def test_strangers_see_where_it_is_served_and_its_creator_sees_all(version: Version, clearance: Clearance) -> None:
    owner, stranger = Api.of(version.model.organization), Api()
    assert precisions(stranger) == []
    (shown,) = precisions(owner)
    assert (shown["cleared"], shown["state"], shown["leave"]) == (False, "failed", "none")
    assert (shown["rows"], shown["correct"], shown["reference_correct"], shown["same_answers"]) == (50, 40, 45, 42)
    assert shown["checkpoint"] == {"name": "tiny-int4", "precision": "INT4", "fingerprint": SMALLER}

    given = owner.call("put", f"versions/{version.pk}/leave", {"checkpoint": "tiny-int4", "leave": "given"}).json()
    assert (given["cleared"], given["leave"]) == (True, "given")
    assert [row["id"] for row in precisions(stranger)] == [str(clearance.pk)]
    for leave in ("refused", "none"):
        body = {"checkpoint": SMALLER, "leave": leave}
        assert owner.call("put", f"versions/{version.pk}/leave", body).json()["cleared"] is False
        assert precisions(stranger) == []
    error_of(owner.call("put", f"versions/{version.pk}/leave", {"checkpoint": "ab" * 32, "leave": "given"}), 404)
    error_of(owner.call("put", f"versions/{version.pk}/leave", {"checkpoint": SMALLER, "leave": "yes"}), 400)
    acts = AuditEntry.objects.filter(act__startswith="version.leave").order_by("id")
    assert [(row.act, row.subject, row.data) for row in acts] == [
        (f"version.leave_{word}", "acme/triage@1", {"checkpoint": "tiny-int4"}) for word in ("given", "refused", "none")
    ]


def test_a_key_of_another_scope_gives_no_leave(version: Version, clearance: Clearance) -> None:
    api = Api.of(version.model.organization, "predict")
    body = {"checkpoint": SMALLER, "leave": "given"}
    error_of(api.call("put", f"versions/{version.pk}/leave", body), 403)
    clearance.refresh_from_db()
    assert not clearance.is_cleared


def test_staff_see_lines_replicas_and_versions_and_measure_again(staff: Api, clearance: Clearance) -> None:
    make_replica("small-1", fingerprint=SMALLER)
    (line,) = staff.get("platform/bases").json()["results"]
    reference, other = line["checkpoints"]
    assert (line["versions"], reference["reference"], reference["replicas"]) == (1, True, [])
    assert (other["name"], other["replicas"], other["measured"], other["cleared"]) == ("tiny-int4", ["small-1"], 1, 0)
    for query, count in (("", 1), (f"?line={line['name']}&state=failed", 1), ("?state=passed", 0), ("?line=no", 0)):
        assert len(staff.get(f"platform/clearances{query}").json()["results"]) == count
    again = staff.post(f"platform/clearances/{clearance.pk}/measure").json()
    assert (again["state"], again["rows"], again["cleared"]) == ("waiting", None, False)
    Clearance.objects.update(state="measuring")
    assert error_of(staff.post(f"platform/clearances/{clearance.pk}/measure"), 409)["code"] == "run_open"
    error_of(staff.post(f"platform/clearances/{clearance.version_id}/measure"), 404)
    assert AuditEntry.objects.filter(act="clearance.measured_again").count() == 1
