"""Receipts over HTTP: own ones for their organization, keys, roots and the page of checks for everybody."""

from __future__ import annotations

import json
from datetime import date, timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from billing.models import Usage
from marketplace.catalog.models import BaseModel
from marketplace.receipts import services
from marketplace.receipts.keys import published_keys
from marketplace.receipts.models import Head
from protocol.proofs.documents import MAX_DOCUMENT_BYTES, verify_document
from protocol.proofs.keys import read_key_file
from tests.marketplace.catalog.factories import make_key, make_organization, make_user
from tests.marketplace.receipts.conftest import BASE, Market, at

DAY = date(2026, 3, 4)


@pytest.fixture
def reader(market: Market) -> Client:
    """A signed-in member of the consumer's organization."""
    user = make_user("reader@example.com")
    market.buyer.memberships.create(user=user, role="developer")
    client = Client()
    client.force_login(user)
    return client


def check(client: Client, content: bytes) -> Any:
    return client.post("/receipts/", {"file": SimpleUploadedFile("receipt.json", content)})


def test_the_file_of_the_page_is_accepted_by_the_page_of_checks_with_its_tree(market: Market, reader: Client) -> None:
    charge = market.charge(at(4))
    BaseModel.objects.filter(fingerprint=BASE).update(precision="bfloat16")
    page = reader.get(f"/dashboard/receipts/{charge.prediction_id}").content.decode()
    assert "tiny, bfloat16" in page, "the base line and the precision that answered"
    address = f"/dashboard/receipts/{charge.prediction_id}.json"
    assert address in page
    services.grow(DAY)
    services.publish(DAY)
    answer = reader.get(address)
    assert "attachment" in answer["Content-Disposition"] and answer["Cache-Control"].startswith("max-age=0")
    shown = check(Client(), answer.content)  # anybody may check it
    assert shown.status_code == 200
    text = shown.content.decode()
    assert "This receipt is valid" in text and "2026-03-04" in text and "80 %" in text and "$0.000000044" in text
    assert "tiny, bfloat16" in text


def test_a_changed_file_is_refused_by_its_rule_and_other_files_too(market: Market, reader: Client) -> None:
    charge = market.charge()
    document = json.loads(reader.get(f"/dashboard/receipts/{charge.prediction_id}.json").content)
    head, payload, signature = document["charge"].split(".")
    document["charge"] = f"{head}.{payload[:-4]}AAAA.{signature}"
    refused = check(Client(), json.dumps(document).encode())
    assert refused.status_code == 422 and b"<code>signature</code>" in refused.content
    assert b"<code>malformed</code>" in check(Client(), b"\xff<script>").content
    too_large = check(Client(), b" " * (MAX_DOCUMENT_BYTES + 1))
    assert b"at most 256 KiB" in too_large.content and b"is valid" not in too_large.content
    assert b"is valid" not in Client().post("/receipts/").content


def test_strangers_get_no_page_and_no_file_of_another_organizations_prediction(market: Market) -> None:
    charge = market.charge()
    stranger = make_user("stranger@example.com")
    make_organization("elsewhere", stranger)
    client = Client()
    for suffix in ("", ".json"):
        address = f"/dashboard/receipts/{charge.prediction_id}{suffix}"
        assert Client().get(address).status_code == 302
        client.force_login(stranger)
        assert client.get(address).status_code == 404


def test_an_api_key_reads_the_receipts_of_its_organization_alone(market: Market) -> None:
    charge = market.charge()
    address = f"/api/v1/receipts/{charge.prediction_id}"
    assert Client().get(address).status_code == 401
    for organization in (market.buyer, market.seller):
        organization.memberships.create(user=make_user(f"{organization.slug}@example.com"), role="owner")
    for organization, scope, status in (
        (market.buyer, "predict", 200),
        (market.buyer, "publish", 200),
        (market.seller, "account", 404),
    ):
        key = make_key(organization, scope)[1]
        answer = Client().get(address, headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == status, (organization.slug, scope)
        if status == 200:
            assert verify_document(answer.content, published_keys()).charge.prediction_id == str(charge.prediction_id)


def test_keys_roots_and_consistency_are_public(market: Market) -> None:
    client = Client()
    well_known = client.get("/.well-known/intarsia-keys.json")
    assert "public" in well_known["Cache-Control"]
    for answer in (well_known, client.get("/api/v1/receipts/keys")):
        assert read_key_file(answer.content).keys == published_keys().keys
    sizes = []
    for minute in (1, 2):
        market.charge(at(4, minute=minute))
        services.grow(DAY)
        head = services.publish(DAY)
        assert head is not None
        sizes.append(head.size)
    listed = client.get("/api/v1/receipts/days").json()
    assert [row["size"] for row in listed["results"]] == sizes == [1, 2] and listed["next_after"] is None
    assert client.get("/api/v1/receipts/days?after=1").json()["results"][0]["sequence"] == 2
    path = "/api/v1/receipts/days/2026-03-04/consistency"
    assert len(client.get(f"{path}?first=1&second=2").json()["path"]) == 1
    assert client.get(f"{path}?first=1&second=3").status_code == 404
    assert client.get(f"{path}?first=2&second=1").status_code == 400
    assert client.get(path.replace("03-04", "02-30") + "?first=1&second=2").status_code == 404
    assert Head.objects.count() == 2


@pytest.mark.django_db
def test_before_there_is_a_key_the_addresses_say_so(client: Client) -> None:
    assert client.get("/.well-known/intarsia-keys.json").status_code == 503
    assert client.get("/api/v1/receipts/keys").status_code == 503
    assert b"no receipt key yet" in client.get("/receipts/").content


def test_a_charge_of_yesterday_is_published_by_the_scheduled_task(market: Market) -> None:
    from marketplace.config.celery import app
    from marketplace.receipts.tasks import publish_days

    schedule = app.conf.beat_schedule["publish roots of receipts"]
    assert schedule["task"] == publish_days.name
    market.charge(timezone.now() - timedelta(days=1))
    publish_days()
    assert Head.objects.count() == 1 and Usage.objects.count() == 1
