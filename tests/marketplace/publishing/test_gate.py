"""The gate to the public: who waits for a person, who does not, and that nothing slips past it."""

from __future__ import annotations

import numpy as np
import pytest

from marketplace.accounts.errors import Conflict, Refusal
from marketplace.accounts.models import FeatureSwitch, Organization
from marketplace.alerts.models import Alert
from marketplace.catalog import selectors as catalog
from marketplace.catalog import services as catalog_services
from marketplace.catalog.models import Model, Version
from marketplace.catalog.services import DeclaredSource
from marketplace.catalog.services.listings import ListingText
from marketplace.publishing import services as publishing
from marketplace.publishing.errors import RefusedByReview
from marketplace.publishing.models import Act, Review, Sketch
from marketplace.publishing.selectors import listing_digest, review_of
from tests.marketplace.catalog.factories import make_model, make_organization, make_user, make_version
from tests.marketplace.evals.factories import make_evaluation, make_set
from tests.marketplace.publishing.factories import give_sketch

pytestmark = pytest.mark.django_db
State = Version.State


def newcomer(visibility: str = "public", slug: str = "newcomer", title: str = "Newcomer's parcels") -> Version:
    """A verified version of an organization of which nobody has reviewed a model."""
    model = make_model(make_organization(f"by-{slug}"), slug, title, reviewed=False)
    Model.objects.filter(pk=model.pk).update(visibility=visibility)
    return make_version(Model.objects.get(pk=model.pk), state=State.VERIFIED)


def published(slug: str, title: str, organization: Organization | None = None) -> Version:
    version = make_version(
        make_model(organization or make_organization(f"of-{slug}"), slug, title), state=State.VERIFIED
    )
    publishing.publish_version(version=version)
    assert version.state == State.PUBLISHED
    return version


def approve(review: Review) -> Review:
    staff = make_user(is_staff=True)
    return publishing.approve_review(review=review, user=staff, seen=listing_digest(review.model))


def is_found(model: Model) -> bool:
    """Whether a stranger finds the model anywhere."""
    org, slug = model.organization.slug, model.slug
    seen = catalog.visible_model(org_slug=org, slug=slug, viewer=None) is not None
    listed = catalog.published_models().filter(pk=model.pk).exists()
    searched = catalog.published_models(query=model.title).filter(pk=model.pk).exists()
    version = catalog.published_version(org_slug=org, slug=slug, number=None) is not None
    assert seen == listed == searched == version
    return seen


def test_a_newcomers_public_model_waits_and_is_nowhere_until_a_person_approves_it() -> None:
    version = newcomer()
    publishing.publish_version(version=version)
    publishing.publish_version(version=version)
    assert version.state == State.IN_REVIEW and version.published_at is None
    assert not is_found(version.model)
    review = review_of(version)
    assert review is not None and review.reasons == ["no_record"] and review.findings == []
    assert Act.objects.get().kind == "opened"

    approve(review)
    version.refresh_from_db()
    assert version.state == State.PUBLISHED and version.published_at is not None
    assert is_found(version.model)
    assert [act.kind for act in Act.objects.order_by("pk")] == ["opened", "approved"]
    assert Alert.objects.get().organization_id == version.model.organization_id

    second = make_version(version.model, state=State.VERIFIED)
    assert publishing.publish_version(version=second).state == State.PUBLISHED, "with a record it is instant"


@pytest.mark.parametrize("visibility", ["unlisted", "private"])
def test_a_newcomer_sells_unlisted_and_private_at_once(visibility: str) -> None:
    version = newcomer(visibility)
    publishing.publish_version(version=version)
    assert version.state == State.PUBLISHED
    assert not Review.objects.exists()


@pytest.mark.parametrize("start", ["unlisted", "private"])
def test_an_unlisted_model_becomes_public_by_the_same_gate(start: str) -> None:
    version = newcomer(start)
    publishing.publish_version(version=version)
    model = version.model
    waiting = publishing.change_listing(model=model, text=ListingText(visibility="public", industry="post"))
    model.refresh_from_db()
    assert (model.visibility, model.industry) == (start, "post"), "what needs no person holds at once"
    assert waiting is not None and waiting.change == {"visibility": "public"}
    assert not catalog.published_models().filter(pk=model.pk).exists()
    approve(waiting)
    model.refresh_from_db()
    assert model.visibility == "public" and is_found(model)


def test_nothing_new_becomes_public_while_public_listings_are_off() -> None:
    public, unlisted = newcomer(), newcomer("unlisted", slug="second", title="Letters")
    publishing.publish_version(version=unlisted)
    FeatureSwitch.objects.create(name="public-listings", percent=0)
    to_public = ListingText(visibility="public")
    for act in (
        lambda: publishing.publish_version(version=public),
        lambda: publishing.change_listing(model=unlisted.model, text=to_public),
    ):
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.code == "feature_off"
    public.refresh_from_db()
    unlisted.model.refresh_from_db()
    assert (public.state, unlisted.model.visibility) == (State.VERIFIED, "unlisted") and not Review.objects.exists()


def test_a_newcomer_in_review_who_turns_unlisted_sells_at_once() -> None:
    version = newcomer()
    publishing.publish_version(version=version)
    assert publishing.change_listing(model=version.model, text=ListingText(visibility="unlisted")) is None
    version.refresh_from_db()
    assert version.state == State.VERIFIED
    assert Review.objects.get().state == "withdrawn"
    publishing.publish_version(version=version)
    assert version.state == State.PUBLISHED


def test_a_name_near_another_organizations_waits_also_with_a_record_and_also_by_an_edit() -> None:
    published("bank-triage", "Ledgerline Transactions")
    other = published("parcels", "Parcels")
    near = make_version(make_model(other.model.organization, "triage", "Lеdgerline Transactіons"), state=State.VERIFIED)
    publishing.publish_version(version=near)
    assert near.state == State.IN_REVIEW
    review = review_of(near)
    assert review is not None and "Ledgerline Transactions" in review.findings[0]["message"]

    waiting = publishing.change_listing(model=other.model, text=ListingText(title="LedgerIine transactions"))
    other.model.refresh_from_db()
    assert waiting is not None and other.model.title == "Parcels"
    assert publishing.change_listing(model=other.model, text=ListingText(title="More parcels")) is None
    other.model.refresh_from_db()
    waiting.refresh_from_db()
    assert (other.model.title, waiting.state) == ("More parcels", "withdrawn")


def test_what_a_person_accepted_is_no_finding_again() -> None:
    published("bank-triage", "Ledgerline Transactions")
    version = make_version(make_model(slug="mine", title="Ledgerline Transaction"), state=State.VERIFIED)
    review = review_of(publishing.publish_version(version=version))
    assert review is not None and review.reasons == ["finding"]
    approve(review)
    assert publishing.publish_version(version=make_version(version.model, state=State.VERIFIED)).state == "published"


def test_a_listing_that_changes_in_review_is_checked_again_and_not_approved_unread() -> None:
    published("bank-triage", "Ledgerline Transactions")
    version = newcomer()
    review = review_of(publishing.publish_version(version=version))
    assert review is not None
    read = listing_digest(review.model)
    publishing.change_listing(model=version.model, text=ListingText(title="Ledgerline Transactions"))
    review.refresh_from_db()
    assert review.reasons == ["no_record", "finding"]
    with pytest.raises(Conflict) as refusal:
        publishing.approve_review(review=review, user=make_user(is_staff=True), seen=read)
    assert refusal.value.code == "listing_changed"
    version.refresh_from_db()
    assert version.state == State.IN_REVIEW


def noised(values: bytes) -> bytes:
    drawn = np.frombuffer(values, np.int8).astype(np.float32)
    noise = np.random.default_rng(1).normal(size=drawn.size) * drawn.std() * 0.2
    return np.clip(np.rint(drawn + noise), -127, 127).astype(np.int8).tobytes()


@pytest.mark.parametrize("visibility", ["public", "unlisted"])
def test_a_copy_is_refused_outright_and_a_person_decides_only_on_appeal(visibility: str) -> None:
    original = published("original", "The original")
    sketch = bytes(Sketch.objects.get(version=original).values)
    version = newcomer(visibility)
    give_sketch(version, noised(sketch))
    for _ in range(2):
        with pytest.raises(RefusedByReview) as refusal:
            publishing.publish_version(version=version)
        assert refusal.value.code == "refused_by_review" and "of-original/original@1" in refusal.value.message
    version.refresh_from_db()
    assert version.state == State.VERIFIED and not is_found(version.model)
    review = Review.objects.get(version=version)
    assert [act.kind for act in review.acts.order_by("pk")] == ["opened", "refused"]

    publishing.appeal_review(review=review, text="We trained both.", by=None)
    version.refresh_from_db()
    assert version.state == State.IN_REVIEW
    approve(review)
    version.refresh_from_db()
    assert version.state == State.PUBLISHED
    again = make_version(version.model, state=State.VERIFIED)
    give_sketch(again, sketch)
    assert publishing.publish_version(version=again).state == State.PUBLISHED


def test_ones_own_versions_declared_sources_and_later_copies_of_ones_own_are_no_copies() -> None:
    original = published("original", "The original")
    sketch = bytes(Sketch.objects.get(version=original).values)
    own = make_version(make_model(original.model.organization, "second", "Another of ours"), state=State.VERIFIED)
    give_sketch(own, sketch)
    assert publishing.publish_version(version=own).state == State.PUBLISHED

    derived = make_version(make_model(slug="derived", title="Derived with thanks"), state=State.VERIFIED)
    give_sketch(derived, sketch)
    with pytest.raises(RefusedByReview):
        publishing.publish_version(version=derived)
    for source in (original, own):
        catalog_services.offer_derivation(model=source.model, royalty_bps=0)
    sources = [DeclaredSource(source.model.full_name) for source in (original, own)]
    catalog_services.derive_from(model=derived.model, sources=sources)
    assert publishing.publish_version(version=derived).state == State.PUBLISHED

    newer = make_version(original.model, state=State.VERIFIED)
    give_sketch(derived, bytes(Sketch.objects.get(version=newer).values))  # they copied it before it was published
    assert publishing.publish_version(version=newer).state == State.PUBLISHED


def test_a_private_copy_does_not_become_unlisted() -> None:
    original = published("original", "The original")
    version = newcomer("private")
    give_sketch(version, bytes(Sketch.objects.get(version=original).values))
    publishing.publish_version(version=version)
    assert version.state == State.PUBLISHED, "its own organization alone can call it"
    for visibility in ("unlisted", "public"):
        with pytest.raises(RefusedByReview):
            publishing.change_listing(model=version.model, text=ListingText(visibility=visibility))
        version.model.refresh_from_db()
        assert version.model.visibility == "private"


def test_weights_that_were_never_compared_wait_for_a_person() -> None:
    version = make_version(state=State.VERIFIED)
    Sketch.objects.all().delete()
    review = review_of(publishing.publish_version(version=version))
    assert review is not None and review.findings[0]["check"] == "sketch"


def test_examples_a_worse_score_and_a_tricky_card_are_findings() -> None:
    first = published("parcels", "Parcels")
    stored = make_set(first, rows=200)
    make_evaluation(first, rows=200, correct=190, base_correct=20, stored=stored)
    worse = make_version(first.model, state=State.VERIFIED)
    make_evaluation(worse, rows=200, correct=150, base_correct=20, stored=stored)
    peft = {"rows": 2, "same": 2, "tokens": 20, "agreed": 20, "base_agreed": 20}
    Version.objects.filter(pk=worse.pk).update(report={"examples": {"run": 3, "valid": 2, "equal": 1}, "peft": peft})
    worse.refresh_from_db()
    Model.objects.update(card_markdown="[https://intarsia.example](https://evil.example/login)")
    review = review_of(publishing.publish_version(version=worse))
    assert review is not None
    assert {finding["check"] for finding in review.findings} == {"examples", "change", "score", "card"}


def test_withdrawing_a_version_ends_its_review(monkeypatch: pytest.MonkeyPatch) -> None:
    version = newcomer()
    publishing.publish_version(version=version)
    publishing.retire_version(version=version)
    assert (version.state, Review.objects.get().state) == ("retired", "withdrawn")
