"""Listings by the API: docs/listings.md runs as it stands, and what it promises holds."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client
from PIL import Image

from marketplace.accounts.audit import entries_of
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_key, make_model, make_organization, make_version

pytestmark = pytest.mark.django_db
PAGE = (Path(__file__).parents[3] / "docs" / "listings.md").read_text()


def program_of(organization: Organization) -> httpx.Client:
    """A client as the page's reader has one, without a server in between."""
    headers = {"Authorization": f"Bearer {make_key(organization)[1]}"}

    def answer(request: httpx.Request) -> httpx.Response:
        kind = request.headers.get("content-type", "")
        path = request.url.raw_path.decode()
        found = Client().generic(request.method, path, request.content, content_type=kind, headers=headers)
        return httpx.Response(found.status_code, content=found.content, request=request)

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://localhost/api/v1/")


@pytest.fixture
def model() -> Model:
    found = make_model(make_organization("acme"), "example")
    make_version(found)
    return found


def test_the_examples_run(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = BytesIO()
    Image.new("RGB", (40, 40), (90, 20, 20)).save(picture, "WEBP")
    file = tmp_path / "logo.webp"
    file.write_bytes(picture.getvalue())
    names: dict[str, Any] = {"organization": "acme", "slug": "example", "logo_file": str(file)}
    names |= {"api": program_of(model.organization), "customer": program_of(make_organization("northbank"))}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/listings.md", "exec"), names)
    said = capsys.readouterr().out
    assert "409 listing_changed" in said and "['northbank']" in said
    assert "{'licence_accepted': True, 'access_granted': True}" in said
    entries = list(entries_of(organization=model.organization))
    assert [entry.act for entry in entries].count("listing.changed") == 3
    assert all(entry.api_key_id for entry in entries if entry.act.startswith(("listing.", "licence.", "access.")))


def test_filters_are_those_of_the_page_and_nonsense_is_refused(model: Model) -> None:
    api = Api()
    assert [one["name"] for one in api.get("models?max_output_micro_usd_per_mtok=400").json()["results"]] == [
        "acme/example"
    ]
    assert api.get("models?q=triage&max_call_nano_usd=1").json()["results"] == []
    for query in ("max_ttft_ms=-1", "min_accuracy_bps=10001", "max_call_nano_usd=many", f"tag={'x' * 31}"):
        assert error_of(api.get(f"models?{query}"), 400)["field"] == query.split("=")[0]


def test_a_logo_that_is_none_is_refused(model: Model) -> None:
    api = Api.of(model.organization, "publish")
    assert error_of(api.put_bytes("models/acme/example/logo", b"<svg/>", 0), 400)["code"] == "not_a_picture"
    assert api.put_bytes("models/acme/example/logo", bytes(2**20 + 1), 0).status_code == 413
    assert api.get("models/acme/example").json()["logo_url"] is None
    error_of(Api.of(model.organization, "predict").call("DELETE", "models/acme/example/logo"), 403)
