"""Decisions, strikes, appeals and reports; and that each of them leaves one row that nobody can change."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from billing.services import credit_promotion
from marketplace.accounts.errors import Conflict, InvalidInput, NotAllowed
from marketplace.accounts.models import Membership, Organization, User
from marketplace.alerts.models import Alert
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model, Version
from marketplace.catalog.services.listings import ListingText
from marketplace.publishing import reports as reports_module
from marketplace.publishing import selectors
from marketplace.publishing import services as publishing
from marketplace.publishing.errors import RefusedByReview, TooManyReports
from marketplace.publishing.models import Act, Report, Review, Strike
from marketplace.publishing.selectors import listing_digest, review_of
from tests.billing.support import hold_request, place, settle
from tests.marketplace.catalog.factories import add_member, make_model, make_organization, make_user, make_version

pytestmark = pytest.mark.django_db
State = Version.State


@pytest.fixture
def staff() -> User:
    return make_user("staff@intarsia.example", is_staff=True)


@pytest.fixture
def waiting() -> Review:
    model = make_model(make_organization("newcomer"), "parcels", "Parcels", reviewed=False)
    version = publishing.publish_version(version=make_version(model, state=State.VERIFIED))
    review = review_of(version)
    assert review is not None and version.state == State.IN_REVIEW
    return review


def approve(review: Review, staff: User) -> None:
    publishing.approve_review(review=review, user=staff, seen=listing_digest(Model.objects.get(pk=review.model_id)))


def state_of(review: Review) -> str:
    assert review.version is not None
    return Version.objects.get(pk=review.version_id).state


def test_a_refusal_has_a_reason_that_the_creator_hears_and_bars_the_public_alone(waiting: Review, staff: User) -> None:
    with pytest.raises(InvalidInput):
        publishing.refuse_review(review=waiting, user=staff, reason="  ")
    publishing.refuse_review(review=waiting, user=staff, reason="The card promises too much.")
    assert state_of(waiting) == State.VERIFIED
    alert = Alert.objects.get()
    assert alert.organization_id == waiting.model.organization_id and "promises too much" in alert.text
    assert "appeal" in alert.text
    version = Version.objects.get(pk=waiting.version_id)
    with pytest.raises(RefusedByReview) as refusal:
        publishing.publish_version(version=version)
    assert "promises too much" in refusal.value.message
    publishing.change_listing(model=version.model, text=ListingText(visibility="unlisted"))
    assert publishing.publish_version(version=Version.objects.get(pk=version.pk)).state == State.PUBLISHED
    with pytest.raises(RefusedByReview):
        publishing.change_listing(model=version.model, text=ListingText(visibility="public"))


def test_an_appeal_comes_before_a_person_once(waiting: Review, staff: User) -> None:
    with pytest.raises(Conflict) as refusal:
        publishing.appeal_review(review=waiting, text="Please.", by=None)
    assert refusal.value.code == "not_refused"
    publishing.refuse_review(review=waiting, user=staff, reason="No.")
    with pytest.raises(InvalidInput):
        publishing.appeal_review(review=waiting, text="x" * 1_001, by=None)
    publishing.appeal_review(review=waiting, text="Please look again.", by=None)
    assert state_of(waiting) == State.IN_REVIEW
    assert list(selectors.queue()) == [waiting]
    publishing.refuse_review(review=waiting, user=staff, reason="Still no.")
    with pytest.raises(Conflict) as refusal:
        publishing.appeal_review(review=waiting, text="Again.", by=None)
    assert refusal.value.code == "appealed_before" and state_of(waiting) == State.VERIFIED
    assert [act.kind for act in Act.objects.order_by("pk")] == ["opened", "refused", "appealed", "refused"]
    assert Alert.objects.count() == 2, "one for each decision"


def test_a_strike_brings_everything_public_before_a_person_until_an_appeal_lifts_it(
    waiting: Review, staff: User
) -> None:
    approve(waiting, staff)
    model = waiting.model
    assert publishing.publish_version(version=make_version(model, state=State.VERIFIED)).state == State.PUBLISHED
    reported = report_by(model, *(customer(f"buyer-{n}") for n in range(3)))
    assert reported is not None
    publishing.refuse_review(review=reported, user=staff, reason="It lies.", strike=True)
    assert Strike.objects.get().organization_id == model.organization_id
    other = make_model(model.organization, "other", "Another thing", reviewed=False)
    second = review_of(publishing.publish_version(version=make_version(other, state=State.VERIFIED)))
    assert second is not None and second.reasons == ["strike"]
    publishing.appeal_review(review=reported, text="It does not.", by=None)
    approve(reported, staff)
    assert Strike.objects.get().lifted_at is not None
    third = publishing.publish_version(version=make_version(model, state=State.VERIFIED))
    assert third.state == State.PUBLISHED
    kinds = [act.kind for act in reported.acts.order_by("pk")]
    assert kinds == ["opened", "refused", "struck", "appealed", "approved", "unstruck"]


def test_nobody_but_staff_decides_and_not_about_their_own_model(waiting: Review, staff: User) -> None:
    owner = waiting.model.organization.memberships.get().user
    for user in (owner, make_user()):
        with pytest.raises(NotAllowed):
            approve(waiting, user)
    Membership.objects.create(organization=waiting.model.organization, user=staff, role="developer")
    for decide in (approve, lambda review, user: publishing.refuse_review(review=review, user=user, reason="x")):
        with pytest.raises(NotAllowed) as refusal:
            decide(waiting, staff)
        assert refusal.value.code == "own_model"
    assert state_of(waiting) == State.IN_REVIEW and Act.objects.count() == 1


def test_a_review_is_decided_once(waiting: Review, staff: User) -> None:
    stale = Review.objects.get(pk=waiting.pk)
    approve(waiting, staff)
    for decide in (
        lambda: approve(stale, staff),
        lambda: publishing.refuse_review(review=Review.objects.get(pk=stale.pk), user=staff, reason="late"),
    ):
        with pytest.raises(Conflict) as refusal:
            decide()
        assert refusal.value.code == "review_closed"
    assert state_of(waiting) == State.PUBLISHED


@pytest.mark.parametrize("statement", ["update", "delete"])
def test_the_audit_cannot_be_changed(waiting: Review, statement: str) -> None:
    acts = Act.objects.filter(review=waiting)
    with pytest.raises(DatabaseError), transaction.atomic():
        acts.update(reason="nothing happened") if statement == "update" else acts.delete()
    assert Act.objects.get().reason == ""


def test_the_queue_has_the_least_time_left_first(waiting: Review) -> None:
    later = make_model(make_organization("later"), "letters", "Letters", reviewed=False)
    second = review_of(publishing.publish_version(version=make_version(later, state=State.VERIFIED)))
    assert second is not None
    Review.objects.filter(pk=second.pk).update(due_at=timezone.now() - timedelta(hours=3))
    assert list(selectors.queue()) == [second, waiting]


def customer(slug: str) -> Organization:
    """An organization that has paid for a prediction of somebody else's model."""
    buyer = make_organization(slug)
    credit_promotion(organization=buyer, amount_nano_usd=10**9, reference=slug)
    seller = Organization.objects.filter(slug="seller").first() or make_organization("seller")
    settle(place(hold_request(buyer, seller)).prediction_id)
    return buyer


def report_by(model: Model, *organizations: Organization) -> Review | None:
    for organization in organizations:
        publishing.report_model(model=model, organization=organization, reason="misleading", text="It lies.", by=None)
    return Review.objects.filter(model=model, kind="reports").order_by("-opened_at").first()


def on_sale() -> Version:
    return make_version(make_model(make_organization("maker"), "thing", "A thing"), state=State.PUBLISHED)


def test_three_customers_who_do_not_belong_together_bring_a_model_back_and_it_stays_on_sale(staff: User) -> None:
    version = on_sale()
    model = version.model
    buyers = [customer(f"buyer-{n}") for n in range(4)]
    assert report_by(model, buyers[0], buyers[1]) is None
    assert report_by(model, make_organization("pays-nothing")) is None
    shared = buyers[2].memberships.get().user
    Membership.objects.create(organization=buyers[0], user=shared, role="developer")
    assert report_by(model, buyers[2]) is None, "one person in two of them is one voice"
    third = report_by(model, buyers[3])
    assert third is not None and third.reasons == ["reports"]
    assert Report.objects.filter(review=third).count() == 5, "whoever wrote is read"
    version.refresh_from_db()
    assert version.state == State.PUBLISHED and catalog.published_models().filter(pk=model.pk).exists()
    assert not selectors.reviews_of(model=model).filter(kind="reports").exists(), "its creator does not hear of it yet"
    assert not Alert.objects.exists()

    approve(third, staff)
    version.refresh_from_db()
    assert version.state == State.PUBLISHED
    assert report_by(model, *(customer(f"later-{n}") for n in range(2))) == third, "answered reports do not count again"


def test_the_creators_friends_do_not_count() -> None:
    version = on_sale()
    buyers = [customer(f"buyer-{n}") for n in range(3)]
    Membership.objects.create(
        organization=buyers[0], user=version.model.organization.memberships.get().user, role="billing"
    )
    assert report_by(version.model, *buyers) is None


def test_staff_take_a_reported_model_off_sale_and_put_it_back(staff: User) -> None:
    version = on_sale()
    review = report_by(version.model, *(customer(f"buyer-{n}") for n in range(3)))
    assert review is not None
    publishing.pull_from_sale(review=review, user=staff, reason="It may do harm.")
    version.refresh_from_db()
    assert version.state == State.IN_REVIEW
    assert not catalog.published_models().exists()
    assert Alert.objects.get().text.startswith("It may do harm.")
    approve(review, staff)
    version.refresh_from_db()
    assert version.state == State.PUBLISHED
    assert [act.kind for act in review.acts.order_by("pk")] == ["opened", "pulled", "approved"]


def test_what_was_refused_after_reports_is_not_for_sale_unlisted_either(staff: User) -> None:
    version = on_sale()
    review = report_by(version.model, *(customer(f"buyer-{n}") for n in range(3)))
    assert review is not None
    publishing.refuse_review(review=review, user=staff, reason="It does harm.")
    version.refresh_from_db()
    assert version.state == State.VERIFIED
    publishing.change_listing(model=version.model, text=ListingText(visibility="unlisted"))
    for candidate in (version, make_version(version.model, state=State.VERIFIED)):
        candidate = Version.objects.get(pk=candidate.pk)
        with pytest.raises(RefusedByReview):
            publishing.publish_version(version=candidate)
        assert candidate.state == State.VERIFIED
    publishing.appeal_review(review=review, text="It does not.", by=None)
    approve(review, staff)
    version.refresh_from_db()
    assert version.state == State.PUBLISHED


def test_an_organization_reports_a_model_once_ten_a_day_and_never_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    version = on_sale()
    model, buyer = version.model, customer("buyer")
    add_member(buyer, "developer")
    report_by(model, buyer)
    for bad, error, code in (
        ({}, Conflict, "reported_before"),
        ({"organization": model.organization}, NotAllowed, "own_model"),
        ({"reason": "because"}, InvalidInput, "invalid"),
        ({"text": "x" * 1_001}, InvalidInput, "invalid"),
    ):
        fields = {"model": model, "organization": buyer, "reason": "other", "text": "", "by": None, **bad}
        with pytest.raises(error) as refusal:
            publishing.report_model(**fields)
        assert refusal.value.code == code
    monkeypatch.setattr(reports_module, "REPORTS_A_DAY", 1)
    with pytest.raises(TooManyReports):
        report_by(make_version(make_model(slug="other")).model, buyer)
    assert Report.objects.count() == 1
