"""The pages about reviews: the creator's notice and appeal, the staff's queue, the customer's report."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from marketplace.catalog.models import Model, Version
from marketplace.publishing.models import Report, Review
from tests.marketplace.publishing.factories import give_sketch
from tests.marketplace.vault.factories import make_sold
from tests.marketplace.web.conftest import World
from tests.marketplace.web.test_access import assert_clean

QUEUE = "/platform/reviews"


@pytest.fixture
def waiting(world: World) -> Review:
    """A version of an organization without a record, published on its page."""
    Review.objects.update(state=Review.State.WITHDRAWN)
    world.client(world.creator).post(f"/dashboard/models/transactions/versions/{world.verified.number}/publish")
    return Review.objects.get(kind="version")


def test_the_creator_reads_why_and_until_when(world: World, waiting: Review) -> None:
    page = world.client(world.creator).get("/dashboard/models/transactions")
    text = page.content.decode()
    assert "In review" in text and "No public model of this organization has been reviewed yet." in text
    assert "within one working day" in text and "ledgerline/transactions@2" in text
    assert "Publish version 2" not in text
    assert_clean(page)
    for user in (None, world.consumer):
        shown = world.client(user).get("/models/ledgerline/transactions").content.decode()
        assert "Version 2" not in shown.replace("\n", " ") and "in review" not in shown


def test_staff_see_the_queue_and_decide(world: World, waiting: Review) -> None:
    client = world.client(world.staff)
    listed = client.get(QUEUE)
    text = listed.content.decode()
    left = round((waiting.due_at - timezone.now()) / timedelta(hours=1))  # three days from a Friday on
    assert "Ledgerline Transactions" in text and (f"{left} h" in text or f"{left - 1} h" in text)
    page = client.get(f"{QUEUE}/{waiting.pk}")
    text = page.content.decode()
    assert "Sorts a line of a bank statement" in text, "the card, as customers would see it"
    assert_clean(listed)
    assert_clean(page)
    seen = text.split('name="seen" value="')[1].split('"')[0]
    assert client.post(f"{QUEUE}/{waiting.pk}/approve", {"seen": "other"}).status_code == 302
    world.verified.refresh_from_db()
    assert world.verified.state == "in_review"
    assert client.post(f"{QUEUE}/{waiting.pk}/approve", {"seen": seen}).headers["Location"] == QUEUE
    world.verified.refresh_from_db()
    assert world.verified.state == "published"
    assert "staff@example.com" in client.get(f"{QUEUE}/{waiting.pk}").content.decode()


def test_a_refusal_needs_a_reason_and_the_creator_appeals_on_the_page(world: World, waiting: Review) -> None:
    client = world.client(world.staff)
    assert client.post(f"{QUEUE}/{waiting.pk}/refuse", {"reason": " "}).status_code == 400
    client.post(f"{QUEUE}/{waiting.pk}/refuse", {"reason": "The card lies.", "strike": "on"})
    waiting.refresh_from_db()
    assert waiting.state == "refused"
    creator = world.client(world.creator)
    shown = creator.get("/dashboard/models/transactions").content.decode()
    assert "The card lies." in shown and "Send the appeal" in shown
    path = reverse("web:appeal", kwargs={"review_id": waiting.pk})
    assert world.client(world.consumer).post(path, {"text": "mine"}).status_code == 404
    creator.post(path, {"text": "It does not."})
    waiting.refresh_from_db()
    assert (waiting.state, waiting.appeal) == ("open", "It does not.")
    assert "It does not." in client.get(f"{QUEUE}/{waiting.pk}").content.decode()


def test_the_queue_is_for_staff(world: World, waiting: Review) -> None:
    paths = [QUEUE, f"{QUEUE}/{waiting.pk}"]
    for path in paths:
        assert world.client(None).get(path).status_code == 302
        for user in (world.consumer, world.creator):
            assert world.client(user).get(path).status_code == 404
    for action in ("approve", "refuse", "pull"):
        for user in (world.consumer, world.creator):
            assert world.client(user).post(f"{QUEUE}/{waiting.pk}/{action}", {"reason": "x"}).status_code == 404
    assert world.client(world.staff).get(f"{QUEUE}/{uuid.uuid4()}").status_code == 404
    waiting.refresh_from_db()
    assert waiting.state == "open"


def test_a_member_reports_a_model_from_its_page(world: World) -> None:
    page = "/models/ledgerline/transactions"
    assert "Report this model" not in world.client(None).get(page).content.decode()
    assert "Report this model" not in world.client(world.creator).get(page).content.decode()
    client = world.client(world.consumer)
    assert "Report this model" in client.get(page).content.decode()
    assert "/accounts/login/" in world.client(None).post(f"{page}/report").headers["Location"]
    client.post(f"{page}/report", {"reason": "misleading", "text": "It sorts nothing."})
    answer = client.post(f"{page}/report", {"reason": "misleading", "text": "Again."}, follow=True)
    assert "has reported this model before" in answer.content.decode()
    assert Report.objects.get().text == "It sorts nothing."


def test_a_draft_cannot_be_reported(world: World) -> None:
    Model.objects.update(visibility="private")
    report = world.client(world.consumer).post("/models/ledgerline/transactions/report", {"reason": "other"})
    assert report.status_code == 404 and not Report.objects.exists()


def test_a_copy_is_refused_on_the_page_with_a_way_to_appeal(world: World) -> None:
    sketch = bytes(world.verified.sketch.values)
    world.client(world.creator).post("/dashboard/models/transactions/versions/2/publish")
    thief = make_sold(Version.State.VERIFIED, organization=world.stranger.organizations.get()).version
    give_sketch(thief, sketch)
    from marketplace.catalog.services import set_price

    set_price(model=thief.model, input_micro_usd_per_mtok=1, output_micro_usd_per_mtok=1)
    client = world.client(world.stranger)
    path = f"/dashboard/models/{thief.model.slug}"
    answer = client.post(f"{path}/versions/1/publish", follow=True).content.decode()
    assert "a copy of ledgerline/transactions@2" in answer and "Send the appeal" in answer
    thief.refresh_from_db()
    assert thief.state == "verified"
