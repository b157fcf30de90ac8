"""The choice of calls: two tenants share the places, a claim holds, and that of a dead worker is taken over."""

from __future__ import annotations

from collections import Counter

import pytest
from django.utils import timezone

from marketplace.accounts.models import ApiKey, Organization
from marketplace.jobs import choosing
from marketplace.jobs.batches import create_batch
from marketplace.jobs.files import store_file
from marketplace.jobs.lifecycle import advance
from marketplace.jobs.models import BatchLine
from marketplace.jobs.predictions import create_prediction
from tests.marketplace.catalog.factories import make_key, make_organization
from tests.marketplace.jobs.test_pages import buyer, rows

__all__ = ["buyer"]  # the fixture
pytestmark = pytest.mark.django_db
CHAT = "/v1/chat/completions"


def begin(organization: Organization, count: int) -> ApiKey:
    key = make_key(organization, "predict")[0]
    file = store_file(organization=organization, name="a.jsonl", content=rows(count))
    create_batch(organization=organization, api_key=key, input_file_id=file.pk, endpoint=CHAT)
    return key


def test_places_are_shared_and_held_until_their_worker_is_gone(
    buyer: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "MOST_LINES", 6)
    monkeypatch.setattr(choosing, "LINES_EACH", 4)
    other = make_organization("other")
    key = begin(buyer, 9)
    advance()
    assert Counter(task.organization_id for task in choosing.take(20, {})) == {buyer.pk: 4}
    begin(other, 9)
    advance()
    assert Counter(task.organization_id for task in choosing.take(20, {})) == {other.pk: 2}
    assert choosing.take(20, {}) == []  # all places are held
    body = {"model": "acme/triage", "messages": [{"role": "user", "content": "now"}]}
    job = create_prediction(organization=buyer, api_key=key, endpoint=CHAT, body=body)
    assert [task.call.pk for task in choosing.take(20, {})] == [job.pk]  # a batch never keeps it waiting
    BatchLine.objects.filter(state="running").update(due_at=timezone.now())  # their worker was killed
    again = choosing.take(20, {buyer.pk: 1})
    assert Counter(task.organization_id for task in again) == {buyer.pk: 1, other.pk: 4}
    choosing.renew(again)
    assert BatchLine.objects.filter(state="running", due_at__gt=timezone.now()).count() == 5
