"""The staff's page of plans: the newest one, what waits or failed, files, downloads, and a page for each plan."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from marketplace.accounts.models import AuditEntry
from marketplace.planning.documents import plan_document
from marketplace.planning.fleet_now import rate_of
from marketplace.planning.measured import MeasuredHour
from marketplace.planning.models import Plan, PlanFile
from marketplace.planning.services import MAX_BYTES, add_file
from marketplace.web.fleet_chart import fleet_chart
from marketplace.web.views import capacity
from tests.marketplace.catalog.factories import make_organization
from tests.marketplace.planning.plans import FILES, document, made, review
from tests.marketplace.teams.fresh import freshen
from tests.marketplace.web.conftest import World
from tests.marketplace.web.sessions import stale
from tests.marketplace.web.test_version_pages import text_of

PAGE = "/platform/capacity"


@pytest.fixture
def staff(world: World) -> Client:
    make_organization("intarsia", world.staff)
    return freshen(world.client(world.staff))


def add_files(world: World) -> None:
    for kind, subject, content in FILES:
        add_file(kind=kind, subject=subject, content=content, by=world.staff)


def upload(staff: Client, content: bytes, **fields: str) -> Any:
    return staff.post(f"{PAGE}/files", {**fields, "file": SimpleUploadedFile("profile.json", content)}, follow=True)


def test_files_are_given_and_a_plan_is_asked_for(world: World, staff: Client) -> None:
    empty = text_of(staff, PAGE)
    assert "needs these files first" in empty and "Make a plan" not in empty and "capacity calibrate" in empty
    assert "Nothing changed." in staff.post(PAGE, follow=True).content.decode() and not Plan.objects.exists()
    for kind, subject, content in FILES:
        assert "Kept: " in upload(staff, content, kind=kind, subject=subject).content.decode()
    assert "Make a plan" in text_of(staff, PAGE)
    assert "A plan is asked for." in staff.post(PAGE, follow=True).content.decode()
    assert "A plan waits since" in text_of(staff, PAGE)
    assert "A plan is waiting already." in staff.post(PAGE, follow=True).content.decode()
    plan = Plan.objects.get()
    assert plan.by == world.staff.pk and "asked for by staff" in text_of(staff, f"{PAGE}/{plan.pk}")
    assert list(AuditEntry.objects.filter(as_staff=True).values_list("act", flat=True).order_by("id")) == [
        *["plan_file.added"] * 3,
        "plan.asked",
    ]


@pytest.mark.parametrize(
    ("fields", "content", "words"),
    [
        ({"kind": "profile"}, b"{}", "Name the accelerator of a profile"),
        ({"kind": "wishes"}, b"{}", "wishes"),
        ({"kind": "prices"}, b"", "empty"),
        ({"kind": "prices"}, b"\xff", "UTF-8"),
        ({"kind": "prices"}, b"x" * (MAX_BYTES + 1), "at most 4 MiB"),
    ],
)
def test_a_file_that_is_none_is_refused_in_its_form(
    staff: Client, fields: dict[str, str], content: bytes, words: str
) -> None:
    answer = upload(staff, content, **fields)
    assert answer.status_code == 400 and words in answer.content.decode() and not PlanFile.objects.exists()


def test_the_newest_plan_is_shown_beside_the_fleet_that_runs(world: World, staff: Client) -> None:
    add_files(world)
    made(result=document(world.model.base_model.fingerprint), review=review(), created_at="2026-01-02T00:00Z")
    Plan.objects.create(state="failed", error="error: step 2: alpha is <b>1.5</b>")
    text = text_of(staff, PAGE)
    assert "The fleet for the next week costs 50.40 USD." in text and "calibrate again" in text
    assert text.index("Machines to have") < text.index("Figure demand") and "54.75 USD" in text
    assert "⌈5.62 × 1.05 / 9.00⌉ + 1 = 2" in text and "A note on tornado." in text
    assert "<strong>17 November 2026</strong>" in text
    assert text.count('<svg viewBox="0 0 640') == 6 and "Only 120 requests were simulated." in text
    for word in ("measured", "simulated", "transferred", "catalogue"):
        assert f">{word}</span>" in text
    assert "was not made: error: step 2: alpha is &lt;b&gt;1.5" in text
    assert '<td class="number">9.00</td>' in text  # what the replica that lives bears
    assert "12.3 %" in text and ">held<" in text


def test_the_fleets_hours_stand_on_the_curve_of_its_plan(
    world: World, staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = world.model.base_model.fingerprint
    plan = made(result=document(base))
    assert "No hour of the last day had enough" in text_of(staff, PAGE)
    hours = [MeasuredHour(datetime(2026, 1, 2, hour, tzinfo=UTC), hour / 4, hour / 8) for hour in (4, 8)]
    monkeypatch.setattr(capacity, "measured_hours", lambda bases: {base: hours} if bases == [base] else {})
    text = text_of(staff, PAGE)
    assert "2 measured hours of tiny on the curve of its plan" in text
    assert "2 Jan, 04:00: 1.00 calls/s of a replica, 95 % of first tokens within 0.50 s" in text
    assert "planned: 3.00 calls/s" in text and "promised, interactive" in text and "promised, batch" not in text
    earlier = document(base)
    del earlier["promised"][0]["curve"]
    Plan.objects.filter(pk=plan.pk).update(result=earlier)
    assert "on the curve of its plan" not in text_of(staff, PAGE), "a plan of an earlier version has none"


def test_a_point_lies_where_both_axes_say() -> None:
    base = plan_document(document()).promised[0]
    chart = fleet_chart(base, [MeasuredHour(datetime(2026, 1, 2, tzinfo=UTC), 4.0, 2.0)])
    assert chart is not None
    across, up = ({float(tick.label): tick.at for tick in ticks} for ticks in (chart.across, chart.up))
    (dot,) = chart.hours
    assert (dot.x, dot.y) == (across[4.0], up[2.0])
    assert chart.line.split()[-1] == f"{across[4.0]},{round((up[2.0] * 19 + up[0.0]) / 20, 1)}"


def test_earlier_plans_have_pages_and_one_of_another_version_says_so(world: World, staff: Client) -> None:
    plan = made(review={"error": "less than 24 hours of it are over"})
    text = text_of(staff, f"{PAGE}/{plan.pk}")
    assert "less than 24 hours of it are over" in text and "the week's plan" in text.replace("&#x27;", "'")
    assert "cdcdcdcdcd…cdcdcd" in text
    Plan.objects.update(result={"format": 7})
    for path in (PAGE, f"{PAGE}/{plan.pk}"):
        assert "Another version" in text_of(staff, path)
    assert staff.get(f"{PAGE}/{uuid.uuid4()}").status_code == 404


def test_targets_and_usage_are_downloads(world: World, staff: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "usage_file", lambda: {"format": 1})  # needs a transaction of its own
    assert staff.get(f"{PAGE}/targets.json").status_code == 404
    made()
    answer = staff.get(f"{PAGE}/targets.json")
    assert answer.json()["pools"]["tiny"]["mu"] == {"1": 9.0, "2": 21.0, "4": 70.0}
    assert answer["Content-Disposition"] == 'attachment; filename="targets.json"'
    assert staff.get(f"{PAGE}/usage.json").json() == {"format": 1}


def test_staff_show_that_they_are_there_before_they_change_anything(world: World) -> None:
    add_files(world)
    client = stale(world.client(world.staff))
    for path in (PAGE, f"{PAGE}/files"):
        answer = client.post(path, {"kind": "prices"})
        assert answer.status_code == 302 and "/accounts/reauthenticate/" in answer["Location"]
    assert not Plan.objects.exists() and PlanFile.objects.count() == 3


def test_what_replicas_bear_follows_from_the_nearest_smaller_number() -> None:
    mu = {"1": 9.0, "2": 21.0, "4": 70.0, "made up": 1.0}
    assert [rate_of(mu, count) for count in (0, 1, 2, 3, 4, 6)] == [None, 9.0, 21.0, 31.5, 70.0, 105.0]
    assert rate_of({"2": 21.0}, 1) == 10.5 and rate_of({}, 3) is None
