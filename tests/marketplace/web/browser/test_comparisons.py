"""Blind comparisons and promises in a real Chromium: pairs judged by arrow keys, the live way, two widths."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.utils import timezone
from playwright.sync_api import Page, expect

from marketplace.promises.models import Month, Promise
from marketplace.trials import selectors, services
from marketplace.trials.models import Trial, TrialRow
from marketplace.trials.rows import Row
from marketplace.trials.running import work_on
from tests.database import as_superuser
from tests.marketplace.trials.conftest import FakeApi, fake
from tests.marketplace.web.browser.conftest import MODEL, Open
from tests.marketplace.web.conftest import World

__all__ = ["fake"]  # the fixture
pytestmark = pytest.mark.browser


def look(page: Page, folder: Path, name: str) -> None:
    """Leave a picture at two widths; nothing is wider than the window."""
    for width in (1280, 375):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways at {width}"
        page.screenshot(path=folder / f"{name}-{width}.png", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 900})


def start(world: World, *, rows: list[Row], scoring: Trial.Scoring) -> Trial:
    """A run of two versions of the world's model."""
    world.verified.state = "published"
    world.verified.save(update_fields=["state"])
    return services.start_trial(
        organization=world.key.organization,
        first=f"{world.model.full_name}@{world.published.number}",
        second=f"{world.model.full_name}@{world.verified.number}",
        rows=rows,
        budget_nano_usd=10**9,
        scoring=scoring,
    )


def test_pairs_are_judged_by_the_arrow_keys(
    open_page: Open, site: tuple[str, World], fake: FakeApi, tmp_path: Path
) -> None:
    world = site[1]
    fake.say = lambda model, message: f"{message} → groceries" if model.endswith("@1") else f"{message} → dining"
    rows = [Row(f"POS 48{number} Northgate Bakery, Leeds, £{number}.40") for number in range(10, 40)]
    trial = start(world, rows=rows, scoring=Trial.Scoring.JUDGE)
    page = open_page(world.consumer)
    page.goto(f"/dashboard/comparisons/{trial.pk}")
    expect(page.get_by_role("heading", name="The next answers are on their way")).to_be_visible()
    work_on(trial.pk)
    expect(page.get_by_role("heading", name="Row 1: which answers better?")).to_be_visible()
    look(page, tmp_path, "judge")
    for number, key in ((1, "ArrowDown"), (2, "ArrowUp"), (3, "ArrowLeft")):
        expect(page.get_by_role("heading", name=f"Row {number}: which answers better?")).to_be_visible()
        page.keyboard.press(key)
    expect(page.get_by_role("heading", name="Row 4: which answers better?")).to_be_visible()
    third = TrialRow.objects.get(trial=trial, number=3)
    assert third.winner == (-1 if trial.a_is_left(3) else 1)
    assert list(TrialRow.objects.filter(trial=trial, number__lt=3).values_list("winner", flat=True)) == [0, 0]
    for number in range(4, 20):  # @1 is always better: the run ends by itself
        pair = selectors.next_pair(Trial.objects.get(pk=trial.pk))
        if pair is None:
            break
        expect(page.get_by_role("heading", name=f"Row {number}: which answers better?")).to_be_visible()
        page.keyboard.press("ArrowLeft" if "groceries" in pair.left else "ArrowRight")
        expect(page.get_by_role("heading", name=f"Row {number}: which answers better?")).not_to_be_visible()
    expect(page.get_by_text("At most 1 in 20 such verdicts is wrong.")).to_be_visible()
    look(page, tmp_path, "ended")


@pytest.mark.deep
def test_a_run_is_watched_while_it_goes_on(
    open_page: Open, site: tuple[str, World], fake: FakeApi, tmp_path: Path
) -> None:
    world = site[1]
    fake.say = lambda model, message: "right" if int(message) % (7 if model.endswith("@1") else 3) else "wrong"
    rows = [Row(f"{number}", "right") for number in range(1, 200)]
    trial = start(world, rows=rows, scoring=Trial.Scoring.JSON)
    page = open_page(world.consumer)
    page.goto("/dashboard/comparisons")
    look(page, tmp_path, "list")
    page.goto(f"/dashboard/comparisons/{trial.pk}")
    expect(page.get_by_role("heading", name="Running")).to_be_visible()
    fake.die_after = 50
    with pytest.raises(KeyboardInterrupt):
        work_on(trial.pk)
    expect(page.get_by_text("25 of 199 rows")).to_be_visible()  # without a reload
    look(page, tmp_path, "running")
    fake.die_after = 10**9
    Trial.objects.filter(pk=trial.pk).update(leased_until=timezone.now())
    work_on(trial.pk)
    expect(page.get_by_text("At most 1 in 20 such verdicts is wrong.")).to_be_visible()
    look(page, tmp_path, "decided")


@pytest.mark.deep
def test_promises_and_what_was_kept_are_a_picture(open_page: Open, site: tuple[str, World], tmp_path: Path) -> None:
    world = site[1]
    this = timezone.now().date().replace(day=1)
    months = [this]
    for _ in range(6):
        months.insert(0, (months[0] - timedelta(days=1)).replace(day=1))
    missed = {"ttft": (12, 38, 0, 51, 20, 90), "valid": (2, 9, 4, 31, 6, 3)}
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for kind, bound in (("ttft", 1_500), ("valid", 9_900)):
            promise = Promise.objects.create(model=world.model, kind=kind, bound=bound, starts_on=months[0])
            for number, month in enumerate(months[:6]):
                calls = 60 if number == 2 else 1_000
                late = min(missed[kind][number], calls)
                value = 1_100 + 15 * late if kind == "ttft" else 10_000 - 10 * late
                Month.objects.create(
                    promise=promise, model=world.model, kind=kind, month=month, calls=calls, missed=late, value=value
                )
        cursor.execute("SET LOCAL session_replication_role = origin")
    page = open_page(None)
    page.goto(MODEL)
    expect(page.get_by_text("95 of 100 calls begin to answer within 1.5 s")).to_be_visible()
    look(page, tmp_path, "promises")
    page.locator(".promises").screenshot(path=tmp_path / "promises-part.png")
    owner = open_page(world.creator)
    owner.goto("/dashboard/models/transactions")
    look(owner, tmp_path, "my-model")
