"""The pages of batches: upload with a report, cost before the start, progress, results, and nobody else's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from billing.services import credit_promotion
from marketplace.accounts.models import Organization
from marketplace.api.body_limit import BodyLimit
from marketplace.catalog.models import Model
from marketplace.catalog.services import set_price
from marketplace.jobs import queue
from marketplace.jobs.erasing import erase_jobs
from marketplace.jobs.files import store_file
from marketplace.jobs.lifecycle import advance, close_purses
from marketplace.jobs.models import Batch, BatchLine, File
from marketplace.privacy.tables import EXPORTED
from marketplace.vault import services as vault
from tests.marketplace.catalog.factories import make_model, make_organization, make_version

pytestmark = pytest.mark.django_db


def rows(count: int, model: str = "acme/triage") -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "private words"}]}
    return b"".join(
        json.dumps({"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}).encode()
        + b"\n"
        for number in range(count)
    )


@pytest.fixture
def buyer(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Organization:
    monkeypatch.setattr(queue, "_send", lambda: None)
    vault.bootstrap_platform_keys()
    organization = make_organization("buyer")
    credit_promotion(organization=organization, amount_nano_usd=10**9, reference="buyer")
    make_version(make_model(make_organization("acme"), "triage", "Triage"))
    return organization


def signed_in(organization: Organization) -> Client:
    client = Client()
    client.force_login(organization.memberships.get().user)
    return client


def test_a_batch_is_started_watched_and_cancelled_on_pages(buyer: Organization) -> None:
    client = signed_in(buyer)
    bad = client.post("/dashboard/batches", {"file": SimpleUploadedFile("a.jsonl", rows(1) + b"{\n" + rows(1))})
    text = bad.content.decode()
    assert bad.status_code == 400 and "Line 2: no JSON" in text and "Line 3: its `custom_id`" in text
    assert not File.objects.exists() and "private words" not in text
    sent = client.post("/dashboard/batches", {"file": SimpleUploadedFile("a.jsonl", rows(3))})
    file = File.objects.get()
    assert (sent.status_code, sent["Location"]) == (302, f"/dashboard/files/{file.pk}")
    report = client.get(sent["Location"]).content.decode()
    assert "3 requests to" in report and "acme/triage" in report and "too few calls were measured" in report
    assert client.post(sent["Location"], {"budget": "0"}).status_code == 400
    started = client.post(sent["Location"], {"budget": "0.25"})
    batch = Batch.objects.get()
    assert started["Location"] == f"/dashboard/batches/{batch.pk}"
    assert batch.api_key.name.startswith("Batch ") and batch.has_purse and batch.api_key.revoked_at is None
    assert "The lines are being read." in client.get(started["Location"]).content.decode()
    advance()
    page = client.get(f"{started['Location']}/progress").content.decode()
    assert "0 of 3 lines are done." in page and 'hx-trigger="every 2s"' in page and "at most $" in page
    assert client.get("/dashboard/batches").content.decode().count(">in progress<") == 1
    client.post(f"{started['Location']}/cancel")
    advance()
    ended = client.get(started["Location"]).content.decode()
    assert "Cancelled after 0 of 3 lines." in ended and "every 2s" not in ended and "Download the errors" in ended
    batch.refresh_from_db()
    assert batch.error_file is not None and batch.api_key.revoked_at is not None
    close_purses()
    errors = client.get(f"/dashboard/files/{batch.error_file.pk}.jsonl")
    assert errors["Content-Type"] == "application/jsonl" and _read(errors).count(b"batch_cancelled") == 3
    stranger = signed_in(make_organization())
    for path in (f"/dashboard/batches/{batch.pk}", f"/dashboard/files/{file.pk}", f"/dashboard/files/{file.pk}.jsonl"):
        assert stranger.get(path).status_code == 404
    for path in (f"/dashboard/batches/{batch.pk}/cancel", f"/dashboard/files/{file.pk}/delete"):
        assert stranger.post(path).status_code == 404
    client.post(f"/dashboard/files/{file.pk}/delete")
    assert not File.objects.filter(pk=file.pk).exists() and Batch.objects.get().input_file_id is None


def test_a_file_is_read_for_its_quote_once_until_a_price_changes(buyer: Organization) -> None:
    client, file = signed_in(buyer), store_file(organization=buyer, name="a.jsonl", content=rows(3))
    path = f"/dashboard/files/{file.pk}"

    def view() -> tuple[int, int]:
        """Return the worst case that the page shows, and how often chunks of the file were read for it."""
        with CaptureQueriesContext(connection) as captured:
            shown = client.get(path).context["quote"]
        return shown.worst_nano_usd, sum("jobs_filechunk" in query["sql"] for query in captured)

    worst, read = view()
    assert read > 0 and view() == (worst, 0)
    set_price(model=Model.objects.get(), input_micro_usd_per_mtok=200, output_micro_usd_per_mtok=800)
    dearer, read = view()
    assert (dearer, read > 0) == (2 * worst, True) and view() == (dearer, 0)


def _read(response: object) -> bytes:
    async def read() -> bytes:
        return b"".join([piece async for piece in response.streaming_content])  # type: ignore[attr-defined]

    return async_to_sync(read)()


def test_a_copy_has_the_texts_and_an_erasure_leaves_counts(buyer: Organization) -> None:
    client = signed_in(buyer)
    file = store_file(organization=buyer, name="a.jsonl", content=rows(2))
    client.post(f"/dashboard/files/{file.pk}", {"budget": "0.25"})
    advance()
    found = {}
    for table in EXPORTED:
        if table.name.startswith("jobs_"):
            some = table.rows(buyer).values(*table.columns)
            found[table.name] = [table.opened(buyer, row) if table.opened else row for row in some]
    assert "private words" in found["jobs_filechunk"][0]["content"]
    assert "private words" in found["jobs_batchline"][1]["request"][1] and found["jobs_batch"][0]["total"] == 2
    erase_jobs(buyer)
    assert not File.objects.exists() and not BatchLine.objects.exclude(request=None).exists()
    batch = Batch.objects.get()
    assert (batch.state, batch.total, batch.metadata) == ("cancelled", 2, {})


async def test_a_form_that_would_reach_the_disk_is_led_back_to_its_page() -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("Django saw the body")

    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/dashboard/batches", "headers": [(b"content-length", b"5000000")]}
    await BodyLimit(app)(scope, receive, send)
    assert sent[0]["status"] == 303 and (b"location", b"/dashboard/batches?too-large") in sent[0]["headers"]  # type: ignore[operator]
