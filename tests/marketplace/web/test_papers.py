"""The pages of invoices: a profile that is judged, papers that belong to one organization, files that download."""

from __future__ import annotations

from typing import Any

import pytest

from billing.models import BillingProfile, Paper
from billing.papers.document import Document
from billing.papers.issue import issue
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.web.conftest import World

PROFILE = {
    "legal_name": "Northbank plc",
    "line1": "1 Lombard Street",
    "line2": "",
    "postal_code": "EC3V 9AA",
    "city": "London",
    "region": "",
    "country": "GB",
    "tax_id": "GB 123 4567 89",
    "email": "ap@northbank.example",
}


def test_a_member_writes_the_billing_profile_and_the_api_reads_it(world: World) -> None:
    client = world.client(world.consumer)
    assert client.get("/dashboard/billing-profile").status_code == 200
    answer = client.post("/dashboard/billing-profile", PROFILE)
    assert (answer.status_code, answer["Location"]) == (302, "/dashboard/invoices")
    page = client.get("/dashboard/invoices").content.decode()
    assert "Northbank plc" in page and "United Kingdom" in page and "GB123456789" in page
    api = Api.of(world.buyer)
    assert api.get("billing-profile").json()["tax_id"] == "GB123456789"
    changed = api.call("PUT", "billing-profile", PROFILE | {"city": "Leeds"})
    assert changed.status_code == 200 and changed.json()["city"] == "Leeds"
    assert BillingProfile.objects.get().updated_by is not None
    error_of(Api.of(world.seller).get("billing-profile"), 404)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("legal_name", ""),
        ("legal_name", "Straße " * 30),
        ("legal_name", "שלום"),  # no font here has Hebrew
        ("country", "XX"),
        ("tax_id", "DE123"),
        ("email", "nobody"),
    ],
)
def test_a_profile_that_papers_cannot_carry_is_refused(world: World, field: str, value: str) -> None:
    page = world.client(world.consumer).post("/dashboard/billing-profile", PROFILE | {field: value})
    assert page.status_code == 400 and 'aria-invalid="true"' in page.content.decode()
    error = error_of(Api.of(world.buyer).call("PUT", "billing-profile", PROFILE | {field: value}), 400)
    assert error["field"] == field
    assert not BillingProfile.objects.exists()


def test_a_developer_sees_no_paper_and_writes_no_profile(world: World) -> None:
    client = world.client(world.developer)
    paper = _paper(world)
    for path in ("/dashboard/invoices", "/dashboard/billing-profile", f"/dashboard/invoices/{paper.pk}.pdf"):
        assert client.get(path).status_code == 403
    assert client.post("/dashboard/billing-profile", PROFILE).status_code == 403
    assert not BillingProfile.objects.exists()


def test_files_download_by_page_and_api_and_belong_to_one_organization(world: World) -> None:
    paper = _paper(world)
    api = Api.of(world.buyer)
    (listed,) = api.get("papers?kind=receipt").json()["results"]
    assert (listed["number"], listed["month"]) == (paper.name, None)
    assert api.get("papers?kind=invoice").json()["results"] == []
    for extension, start in (("pdf", b"%PDF-"), ("csv", b"document,number,")):
        files: list[Any] = [
            world.client(world.consumer).get(f"/dashboard/invoices/{paper.pk}.{extension}"),
            api.get(f"papers/{paper.pk}/{extension}"),
        ]
        for file in files:
            assert file.content.startswith(start)
            assert file["Content-Disposition"] == f'attachment; filename="{paper.name}.{extension}"'
        assert files[0].content == files[1].content
        assert world.client(world.stranger).get(f"/dashboard/invoices/{paper.pk}.{extension}").status_code == 404
    assert paper.name in world.client(world.consumer).get("/dashboard/invoices").content.decode()
    assert paper.name not in world.client(world.stranger).get("/dashboard/invoices").content.decode()


def _paper(world: World) -> Paper:
    document = Document("Receipt", (), (), ())
    return issue(Paper.Kind.RECEIPT, organization=world.buyer, subject="x", document=document, total_nano_usd=0)
