"""The statement page, its file and its API say what the books say, to the organization alone."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest
from django.utils import timezone

from billing.periods import post_entries
from billing.selectors import wallet
from billing.services import credit_promotion
from marketplace.web.views import statements as views
from tests.marketplace.api.client import Api
from tests.marketplace.web.conftest import World

MONTH = f"{timezone.now():%Y-%m}"


def test_page_file_and_api_agree_and_belong_to_one_organization(world: World) -> None:
    credit_promotion(organization=world.buyer, amount_nano_usd=1_234_567_891, reference="=1+1", memo="@gift")
    post_entries()
    client = world.client(world.consumer)
    page = client.get(f"/dashboard/statements?month={MONTH}").content.decode()
    assert "This month is open" in page and "Promotion" in page and "$1.234567891" in page

    file = client.get(f"/dashboard/statements/{MONTH}.csv")
    assert file.headers["Content-Disposition"] == f'attachment; filename="northbank-{MONTH}.csv"'
    rows = list(csv.DictReader(io.StringIO(file.content.decode())))
    credit = [row for row in rows if row["account"] == "customer_credit"]
    amounts = [Decimal(row["amount_usd"]) for row in credit]
    assert sum(amounts[:-1]) == amounts[-1] == Decimal(wallet(world.buyer).posted) / 10**9
    (gift,) = [row for row in credit if row["kind"] == "promotion"]
    assert (gift["reference"], gift["memo"]) == ("'=1+1", "'@gift")  # no spreadsheet runs them

    api = Api.of(world.buyer)
    (account,) = api.get("statements").json()["accounts"]
    assert account["closing_nano_usd"] == wallet(world.buyer).posted
    read, after = [], 0
    while after is not None:
        answer = api.get(f"statements/lines?limit=1&after={after}").json()
        read += answer["results"]
        after = answer["next_after"]
    assert [line["sequence"] for line in read] == [int(row["number"]) for row in credit if row["number"]]
    assert sum(line["amount_nano_usd"] for line in read) == account["closing_nano_usd"]

    others = world.client(world.stranger).get(f"/dashboard/statements/{MONTH}.csv").content.decode()
    assert others.strip() == ",".join(views.COLUMNS)


def test_a_month_with_too_many_lines_says_where_to_read_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    post_entries()
    monkeypatch.setattr(views, "MAX_CSV_LINES", 0)
    answer = world.client(world.consumer).get(f"/dashboard/statements/{MONTH}.csv", follow=True)
    assert "statements/lines" in answer.content.decode() and answer.redirect_chain


@pytest.mark.parametrize("path", ["?month=2026-13", "?month=1999-01", "?month=", "/2026-13.csv", "/abc.csv"])
def test_an_address_of_no_month_is_not_found(world: World, path: str) -> None:
    assert world.client(world.consumer).get(f"/dashboard/statements{path}").status_code == 404


def test_developers_and_strangers_of_the_platform_do_not_see_statements(world: World) -> None:
    assert world.client(world.developer).get("/dashboard/statements").status_code == 403
    assert world.client(world.developer).get(f"/dashboard/statements/{MONTH}.csv").status_code == 403
    assert world.client(None).get("/dashboard/statements").status_code == 302
