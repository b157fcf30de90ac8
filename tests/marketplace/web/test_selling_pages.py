"""The creator's overview of all models, and earnings by day, model and version, as pages, file and API."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

from django.utils import timezone

from billing.rollups.services import roll_up
from marketplace.catalog.models import Model, Rollout, Version
from tests.marketplace.watch.shown import show_use
from tests.marketplace.web.conftest import World
from tests.marketplace.web.test_access import assert_clean


def text_of(world: World, path: str) -> str:
    response = world.client(world.creator).get(path)
    assert response.status_code == 200
    assert_clean(response)
    return " ".join(response.content.decode().split())


def test_the_overview_has_every_model_with_its_plans_and_alarms(world: World) -> None:
    roll_up()
    show_use(world.published)
    Version.objects.filter(pk=world.verified.pk).update(state="published", published_at=timezone.now())
    Model.objects.update(default_version=world.published)
    Rollout.objects.create(model=world.model, version=world.verified, baseline=world.published, percent=10)
    now = timezone.now()
    Version.objects.filter(pk=world.published.pk).update(deprecated_at=now, ends_at=now + timedelta(days=40))
    for days in (1, 7, 30):
        page = text_of(world, f"/dashboard/selling?days={days}")
        for text in ("Ledgerline Transactions", "version 2 for 10 %", "version 1 ends", "Drift (PSI)", "91.8 %"):
            assert text in page, (days, text)
    assert "Calls by day" in page and "Revenue by day" in page
    client = world.client(world.creator)
    (line,) = client.get("/api/v1/in-use?days=30").json()
    assert (line["default_version"], line["rolled_out_version"], line["rollout_percent"]) == (1, 2, 10)
    assert line["predictions"] == len(world.usage) and line["ending_version"] == 1
    assert line["failures"] <= line["requests"] and line["firing"] == ["Drift (PSI)"]
    assert world.client(world.consumer).get("/api/v1/in-use").json() == []


def test_earnings_are_shown_for_days_by_version_and_as_a_file(world: World) -> None:
    roll_up()
    today = timezone.now().date()
    week = f"since={today - timedelta(days=6)}&until={today}"
    page = text_of(world, f"/dashboard/earnings?{week}")
    assert "ledgerline/transactions@1" in page and "By version" in page
    client = world.client(world.creator)
    assert client.get(f"/dashboard/earnings?since={today}&until=2020-01-01").status_code == 400
    rows = list(csv.DictReader(io.StringIO(client.get(f"/dashboard/earnings.csv?{week}").content.decode())))
    assert len(rows) == 7 and {row["version"] for row in rows} == {"1"}
    asked = f"since={today - timedelta(days=6)}T00:00:00Z&by_day=true&model=transactions"
    answer = client.get(f"/api/v1/earnings/versions?{asked}").json()["results"]
    assert [one["day"] for one in answer] == [row["day"] for row in rows]
    assert [str(one["earned_nano_usd"]) for one in answer] == [row["earned_nano_usd"] for row in rows]
    (total,) = client.get("/api/v1/earnings/versions").json()["results"]
    assert total["predictions"] == len(world.usage) and total["day"] is None
    assert client.get("/api/v1/earnings/versions?model=another").status_code == 404
    assert world.client(world.consumer).get("/dashboard/earnings.csv").content.count(b"\n") == 1
