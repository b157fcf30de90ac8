"""The usage page: filters, pages and the file; a receipt's lines sum to what was charged."""

from __future__ import annotations

import csv
import io
from datetime import date, timedelta

import pytest
from django.utils import timezone

from billing.models import Usage
from billing.pricing import Price, TokenUsage, cost_nano_usd
from billing.rollups.usage import usage_summary
from billing.usage_lists import CSV_COLUMNS, Position
from marketplace.web.cost_lines import cost_lines
from tests.marketplace.web.conftest import World

pytestmark = pytest.mark.django_db
PATH = "/dashboard/usage"


def rows_of(world: World, query: str = "") -> list[dict[str, str]]:
    answer = world.client(world.consumer).get(f"{PATH}.csv?{query}")
    assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.content.decode())))


def test_the_file_has_what_the_filter_leaves(world: World) -> None:
    everything = rows_of(world)
    assert len(everything) == Usage.objects.filter(organization_id=world.key.organization_id).count() > 0
    assert tuple(everything[0]) == CSV_COLUMNS
    name = everything[0]["model"]
    assert len(rows_of(world, f"model={name}")) == sum(row["model"] == name for row in everything)
    assert rows_of(world, f"first={date.today() + timedelta(days=1)}&last={date.today() + timedelta(days=1)}") == []
    of_key = rows_of(world, f"key={world.key.pk}")
    assert {row["key_id"] for row in of_key} <= {str(world.key.pk)}
    assert len(rows_of(world, "key=not-a-key")) == len(everything), "a filter that is none is left out"


def test_another_organizations_key_finds_nothing(world: World) -> None:
    client = world.client(world.stranger)
    assert len(client.get(f"{PATH}.csv?key={world.key.pk}").content.decode().splitlines()) == 1


def test_pages_show_each_prediction_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marketplace.web.views.usage.PAGE_SIZE", 1)
    client, seen, query = world.client(world.consumer), [], ""
    for _ in range(50):
        page = client.get(f"{PATH}?{query}").context["page"]
        seen += [row.prediction_id for row in page.rows]
        if page.following is None:
            break
        query = f"after={page.following}"
    ids = Usage.objects.filter(organization_id=world.key.organization_id).values_list("prediction_id", flat=True)
    assert sorted(seen) == sorted(ids) and len(seen) > 1


def test_a_position_that_is_none_begins_at_the_start(world: World) -> None:
    for text in ("x", "99999999999999999999_zz", "", "1_2_3", "1700000000000000_"):
        assert Position.read(text) is None
        assert world.client(world.consumer).get(PATH, {"after": text}).status_code == 200


def test_sums_of_a_filter_are_those_of_the_whole_where_it_leaves_all(world: World) -> None:
    client = world.client(world.consumer)
    total = usage_summary(world.key.organization, group_by=["model"])
    for one in total:
        shown = client.get(PATH, {"model": one.model_name}).context["overview"]
        assert [(row.model_name, row.cost_nano_usd) for row in shown.models] == [(one.model_name, one.cost_nano_usd)]
        assert sum(row.cost_nano_usd for row in shown.daily.days) == one.cost_nano_usd


def test_a_period_that_cannot_be_is_said_and_not_taken(world: World) -> None:
    page = world.client(world.consumer).get(PATH, {"first": "2026-12-01", "last": "2026-01-01"})
    assert "Choose a first day" in page.content.decode() and page.context["days"] == 30


@pytest.mark.parametrize("bps", [10_000, 15_000, 3_333])
@pytest.mark.parametrize("gift", [0, 40])
def test_the_lines_of_a_receipt_sum_to_the_charge(bps: int, gift: int) -> None:
    usage = TokenUsage(31, 16, 7)
    price = Price(200_001, 50_003, 800_007, 13, bps)
    row = Usage(
        prompt_tokens=31,
        cached_tokens=16,
        completion_tokens=7,
        input_micro_usd_per_mtok=200_001,
        cached_input_micro_usd_per_mtok=50_003,
        output_micro_usd_per_mtok=800_007,
        per_prediction_nano_usd=13,
        class_bps=bps,
        allowance_nano_usd=gift,
        latency_class="batch",
        cost_nano_usd=cost_nano_usd(price, usage, allowance_nano_usd=gift),
        created_at=timezone.now(),
    )
    lines = cost_lines(row)
    assert sum(line.pico_usd for line in lines) == row.cost_nano_usd * 1_000
    assert lines[0].tokens == 15 and lines[0].pico_usd == 15 * 200_001
