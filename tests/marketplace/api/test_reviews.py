"""Reviews over HTTP: publish, queue, decide, appeal, report."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model, Version
from marketplace.publishing.models import Report, Review
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_model, make_organization, make_user, make_version

pytestmark = pytest.mark.django_db
State = Version.State
NO_RECORD = "No public model of this organization has been reviewed yet."


@pytest.fixture
def newcomer() -> Organization:
    return make_organization("newcomer")


@pytest.fixture
def version(newcomer: Organization) -> Version:
    return make_version(make_model(newcomer, "parcels", "Parcels", reviewed=False), state=State.VERIFIED)


@pytest.fixture
def staff() -> Api:
    return Api.of(make_organization("intarsia", make_user("staff@intarsia.example", is_staff=True)))


def test_from_in_review_to_published(newcomer: Organization, version: Version, staff: Api) -> None:
    api = Api.of(newcomer)
    published = api.post(f"versions/{version.id}/publish")
    assert published.status_code == 200
    shown = published.json()
    assert shown["state"] == "in_review" and shown["published_at"] is None
    assert shown["review"]["reasons"] == [NO_RECORD] and shown["review"]["state"] == "open"
    assert shown["review"]["due_at"] > shown["review"]["opened_at"]
    (listed,) = api.get("models/newcomer/parcels/versions").json()["results"]
    assert listed["review"]["id"] == shown["review"]["id"]
    (own,) = api.get("models/newcomer/parcels/reviews").json()["results"]
    assert own["kind"] == "version" and own["version"] == 1
    for stranger in (Api.of(make_organization("stranger")), Api()):
        for path in ("models/newcomer/parcels", "models/newcomer/parcels/versions"):
            error_of(stranger.get(path), 404)
        assert stranger.get("models").json()["results"] == []
        assert stranger.get("models?q=parcels").json()["results"] == []

    (queued,) = staff.get("platform/reviews").json()["results"]
    assert queued["model"] == "newcomer/parcels" and queued["title"] == "Parcels" and "sketch" not in queued["report"]
    path = f"platform/reviews/{queued['id']}"
    error_of(staff.post(f"{path}/approve", {}), 400)
    assert error_of(staff.post(f"{path}/approve", {"listing_digest": "another"}), 409)["code"] == "listing_changed"
    approved = staff.post(f"{path}/approve", {"listing_digest": queued["listing_digest"]})
    assert approved.json()["state"] == "approved"
    assert Api().get("models/newcomer/parcels").json()["newest_version"] == 1
    assert staff.get("platform/reviews").json()["results"] == []
    assert error_of(staff.post(f"{path}/refuse", {"reason": "late"}), 409)["code"] == "review_closed"


def test_a_refusal_and_its_appeal(newcomer: Organization, version: Version, staff: Api) -> None:
    api = Api.of(newcomer)
    review = api.post(f"versions/{version.id}/publish").json()["review"]["id"]
    error_of(staff.post(f"platform/reviews/{review}/refuse", {"reason": " "}), 400)
    refused = staff.post(f"platform/reviews/{review}/refuse", {"reason": "The card lies.", "strike": True}).json()
    assert (refused["state"], refused["decision"]) == ("refused", "The card lies.")
    error = error_of(api.post(f"versions/{version.id}/publish"), 409)
    assert error["code"] == "refused_by_review" and "The card lies." in error["message"] and review in error["message"]
    error_of(api.post(f"reviews/{review}/appeal", {"text": "x" * 1_001}), 400)
    appealed = api.post(f"reviews/{review}/appeal", {"text": "It does not."}).json()
    assert appealed["state"] == "open" and appealed["appealed_at"]
    (queued,) = staff.get("platform/reviews").json()["results"]
    assert queued["appeal"] == "It does not."


def test_a_change_that_waits_is_in_the_answer_and_the_rest_holds(newcomer: Organization, version: Version) -> None:
    api = Api.of(newcomer)
    Model.objects.update(visibility="unlisted")
    assert api.post(f"versions/{version.id}/publish").json()["state"] == "published"
    changed = api.call("PATCH", "models/newcomer/parcels", {"visibility": "public", "industry": "post"}).json()
    assert (changed["visibility"], changed["industry"]) == ("unlisted", "post")
    assert changed["review"]["change"] == {"visibility": "public"} and changed["review"]["reasons"] == [NO_RECORD]
    again = api.call("PATCH", "models/newcomer/parcels", {"tags": ["post"]}).json()
    assert again["review"] is None and again["tags"] == ["post"]
    assert Api().get("models").json()["results"] == []


def test_staffs_operations_are_staffs_alone(newcomer: Organization, version: Version) -> None:
    api = Api.of(newcomer)
    review = api.post(f"versions/{version.id}/publish").json()["review"]["id"]
    for method, path in (
        ("GET", "platform/reviews"),
        *(("POST", f"platform/reviews/{review}/{action}") for action in ("approve", "refuse", "pull")),
    ):
        assert error_of(api.call(method, path, {"reason": "mine", "listing_digest": "x"}), 403)["code"] == "staff_only"
        error_of(Api().call(method, path, {}), 401)
    assert Review.objects.get().state == "open"


def test_a_report_needs_a_member_of_another_organization_and_a_model_that_it_sees(version: Version) -> None:
    body = {"reason": "copy", "text": "It is ours."}
    reporter = Api.of(make_organization("reporter"), "predict")
    error_of(reporter.post("models/newcomer/parcels/reports", body), 404)  # verified alone: it is not there
    Version.objects.update(state="published")
    error_of(Api().post("models/newcomer/parcels/reports", body), 401)
    error_of(reporter.post("models/newcomer/parcels/reports", {"reason": "ugly"}), 400)
    error_of(reporter.post("models/newcomer/parcels/reports", {"reason": "copy", "text": "x" * 1_001}), 400)
    assert reporter.post("models/newcomer/parcels/reports", body).status_code == 201
    assert error_of(reporter.post("models/newcomer/parcels/reports", body), 409)["code"] == "reported_before"
    own = Api.of(version.model.organization)
    assert error_of(own.post("models/newcomer/parcels/reports", body), 403)["code"] == "own_model"
    assert Report.objects.get().text == "It is ours."
