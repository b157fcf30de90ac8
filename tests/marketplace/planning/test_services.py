"""Files, claims and ends of plans: one at a time, each made or not made, whatever happens to its worker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.accounts.models import AuditEntry, User
from marketplace.planning import services
from marketplace.planning.errors import NotMade
from marketplace.planning.models import Plan, PlanFile
from marketplace.planning.tasks import ask_weekly, make_plan
from tests.marketplace.catalog.factories import make_organization, make_user
from tests.marketplace.planning.plans import FILES, PROFILE, document, review

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff() -> User:
    found = make_user("staff@example.com", is_staff=True)
    make_organization("intarsia", found)
    return found


@pytest.fixture
def files(staff: User) -> None:
    for kind, subject, content in FILES:
        services.add_file(kind=kind, subject=subject, content=content, by=staff)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each command answers; an exception is raised."""
    answers: dict[str, Any] = {"plan": document(), "review": review()}

    def run(folder: object, *arguments: str) -> Any:
        found = answers[arguments[0]]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(services, "run_capacity", run)
    monkeypatch.setattr(services, "usage_file", lambda: {"format": 1})
    return answers


@pytest.mark.parametrize(
    ("kind", "subject", "content", "field"),
    [
        ("wishes", "", b"x", "kind"),
        ("profile", "", b"x", "subject"),
        ("prices", "l4", b"x", "subject"),
        ("profile", "l4=/etc/passwd", PROFILE, "subject"),
        ("profile", "l4\n", PROFILE, "subject"),
        ("prices", "", b"", "file"),
        ("prices", "", b"x" * (services.MAX_BYTES + 1), "file"),
        ("prices", "", b"\xff", "file"),
        ("prices", "", b"a\0b", "file"),
        ("profile", "l4", b"{}", "file"),
        ("profile", "l4", PROFILE.replace(b"ab", b"AB"), "file"),
    ],
)
def test_a_file_that_cannot_be_one_is_refused(staff: User, kind: str, subject: str, content: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        services.add_file(kind=kind, subject=subject, content=content, by=staff)
    assert refused.value.field == field and not PlanFile.objects.exists()
    assert not AuditEntry.objects.filter(act="plan_file.added").exists()


def test_the_newest_of_a_kind_accelerator_and_base_counts(staff: User, files: None) -> None:
    newer = services.add_file(kind="profile", subject="l4", content=PROFILE + b" ", by=staff)
    services.add_file(kind="profile", subject="l4", content=PROFILE.replace(b"ab", b"cd"), by=staff)
    services.add_file(kind="profile", subject="h100", content=PROFILE, by=staff)
    found = services.newest_files()
    assert len(found) == 5 and newer in found and PlanFile.objects.count() == 6
    entry = AuditEntry.objects.filter(act="plan_file.added").order_by("-id")[0]
    assert (entry.subject, entry.as_staff) == ("profile h100 abababababab", True)


def test_a_plan_needs_files_and_one_waits_at_a_time(staff: User) -> None:
    with pytest.raises(Conflict, match="Prices") as refused:
        services.ask_for_plan(by=staff)
    assert refused.value.code == "files_missing" and not Plan.objects.exists()
    for kind, subject, content in FILES:
        services.add_file(kind=kind, subject=subject, content=content, by=staff)
    first = services.ask_for_plan(by=staff)
    with pytest.raises(Conflict) as refused:
        services.ask_for_plan(by=staff)
    assert refused.value.code == "plan_waits"
    assert services.claim_plan() == first
    second = services.ask_for_plan(by=staff)  # while the first is made
    assert services.claim_plan() is None
    second.refresh_from_db()
    assert second.state == "waiting"
    assert AuditEntry.objects.filter(act="plan.asked").count() == 2


def test_the_plan_of_a_killed_worker_is_given_up_and_stays_so(
    staff: User, files: None, commands: dict[str, Any]
) -> None:
    services.ask_for_plan(by=staff)
    lost = services.claim_plan()
    assert lost is not None
    waiting = services.ask_for_plan(by=staff)
    Plan.objects.filter(pk=lost.pk).update(started_at=timezone.now() - timedelta(seconds=services.WORK_SECONDS + 60))
    assert services.claim_plan() == waiting
    services.make(lost)  # a worker that was only slow
    lost.refresh_from_db()
    assert (lost.state, lost.error, lost.result) == ("failed", "its worker was lost", None)


def test_a_plan_is_made_with_the_review_of_the_one_before(staff: User, files: None, commands: dict[str, Any]) -> None:
    assert make_plan() is False
    services.ask_for_plan(by=staff)
    assert make_plan() is True
    first = Plan.objects.get()
    assert (first.state, first.review, first.error) == ("done", None, "") and first.finished_at
    assert first.files.keys() == {"profile l4 abababababab", "prices", "promises"}
    commands["review"] = NotMade("less than 24 hours are over")
    second = services.ask_for_plan(by=staff)
    make_plan()
    second.refresh_from_db()
    assert (second.state, second.review) == ("done", {"error": "less than 24 hours are over"})
    commands["review"] = review()
    third = services.ask_for_plan(by=staff)
    make_plan()
    third.refresh_from_db()
    assert third.review == review()


def test_what_no_page_could_show_is_not_made(staff: User, files: None, commands: dict[str, Any]) -> None:
    for answer, words in ((NotMade("error: step 2: alpha is 1.5"), "alpha is 1.5"), ({"format": 9}, "made_on")):
        commands["plan"] = answer
        plan = services.ask_for_plan(by=staff)
        make_plan()
        plan.refresh_from_db()
        assert plan.state == "failed" and words in plan.error and plan.result is None


def test_a_worker_that_fails_leaves_no_plan_running(staff: User, files: None, commands: dict[str, Any]) -> None:
    commands["plan"] = RuntimeError("no disk")
    plan = services.ask_for_plan(by=staff)
    with pytest.raises(RuntimeError):
        make_plan()
    plan.refresh_from_db()
    assert plan.state == "failed" and "log" in plan.error and "disk" not in plan.error
    services.ask_for_plan(by=staff)


def test_a_plan_is_asked_for_every_week(staff: User) -> None:
    assert ask_weekly() is False  # the files are missing
    for kind, subject, content in FILES:
        services.add_file(kind=kind, subject=subject, content=content, by=staff)
    assert ask_weekly() is True and ask_weekly() is False
    plan = Plan.objects.get()
    assert (plan.by, plan.state) == (None, "waiting")
    Plan.objects.update(created_at=timezone.now() - timedelta(days=8))
    assert ask_weekly() is False  # it still waits
    Plan.objects.update(created_at=timezone.now() - timedelta(days=6), state="failed")
    assert ask_weekly() is False
    Plan.objects.update(created_at=timezone.now() - timedelta(days=8))
    assert ask_weekly() is True and Plan.objects.count() == 2
