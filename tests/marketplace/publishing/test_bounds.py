"""Rules of publishing with a number or a state: each just below its bound, at it, and above."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from billing.services import credit_promotion
from marketplace.accounts.audit import PLATFORM
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.catalog.models import Model, Version
from marketplace.publishing import services as publishing
from marketplace.publishing.checks.findings import COPY, Finding
from marketplace.publishing.endings import customers_of, earliest_end, is_in_use
from marketplace.publishing.errors import TooManyReports
from marketplace.publishing.models import Report, Review
from marketplace.publishing.policies import Record, independent, reasons_for_review
from marketplace.publishing.tasks import tell_of_ends
from marketplace.publishing.working_days import due_after
from tests.billing.support import hold_request, place, settle
from tests.marketplace.catalog.factories import make_model, make_organization, make_version
from tests.marketplace.publishing.test_decisions import customer, on_sale, report_by
from tests.marketplace.publishing.test_endings import announce, bring_forward, told, use

MINUTE = timedelta(minutes=1)


# -- the end of a version -------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(("days", "counts"), [(29, True), (31, False)])
def test_whoever_called_a_version_within_thirty_days_is_its_customer_and_neither_its_creator_nor_others_are(
    days: int, counts: bool
) -> None:
    version = make_version()
    sibling, stranger = make_version(version.model), make_version()
    buyer, others = make_organization(), make_organization()
    use(version, buyer, days_ago=days)
    use(version, version.model.organization)
    use(sibling, others)
    use(stranger, others)
    assert customers_of(version) == (frozenset({buyer.pk}) if counts else frozenset())
    assert is_in_use(version) is counts
    notice = earliest_end(version) - timezone.now()
    assert abs(notice - timedelta(days=30 if counts else 14)) < MINUTE


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("in_use", "notice", "good"),
    [
        (False, timedelta(days=14) - MINUTE, False),
        (False, timedelta(days=14) + MINUTE, True),
        (True, timedelta(days=30) - MINUTE, False),
        (True, timedelta(days=30) + MINUTE, True),
        (False, timedelta(days=730) - MINUTE, True),
        (False, timedelta(days=730) + MINUTE, False),
    ],
)
def test_notice_is_of_two_weeks_or_thirty_days_in_use_and_of_two_years_at_most(
    in_use: bool, notice: timedelta, good: bool
) -> None:
    version = make_version()
    if in_use:
        use(version, make_organization())
    ends_at = timezone.now() + notice
    if good:
        announced = publishing.announce_end(version=version, ends_at=ends_at, replacement=None, actor=PLATFORM)
        assert announced.ends_at == ends_at
    else:
        with pytest.raises(InvalidInput):
            publishing.announce_end(version=version, ends_at=ends_at, replacement=None, actor=PLATFORM)
        version.refresh_from_db()
        assert version.ends_at is None and told() == []


@pytest.mark.django_db
@pytest.mark.parametrize(("left", "words"), [(timedelta(days=7) + MINUTE, 2), (timedelta(days=7) - MINUTE, 3)])
def test_the_last_word_comes_in_the_last_week(left: timedelta, words: int) -> None:
    version = make_version()
    use(version, make_organization())
    announce(version, 30)
    bring_forward(version, seconds=left.total_seconds())
    tell_of_ends()
    assert len(told()) == words, "the first end, the new one, and its last word"


# -- reviews --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opened", "due"),
    [
        ("2026-06-04T23:59:59+00:00", "2026-06-05T23:59:59+00:00"),  # Thursday
        ("2026-06-05T00:00:00+00:00", "2026-06-08T00:00:00+00:00"),  # Friday, the first moment
        ("2026-06-05T23:59:59+00:00", "2026-06-08T23:59:59+00:00"),
        ("2026-06-06T00:00:00+00:00", "2026-06-09T00:00:00+00:00"),  # Saturday
        ("2026-06-07T23:59:59+00:00", "2026-06-09T00:00:00+00:00"),  # Sunday
        ("2026-06-08T00:00:00+00:00", "2026-06-09T00:00:00+00:00"),
        ("2026-06-07T23:59:59-05:00", "2026-06-09T04:59:59+00:00"),  # a Monday in UTC
    ],
)
def test_a_working_day_is_24_hours_of_monday_to_friday_in_utc(opened: str, due: str) -> None:
    assert due_after(datetime.fromisoformat(opened)) == datetime.fromisoformat(due)


@pytest.mark.parametrize(
    ("approved", "strikes", "findings", "platform", "reasons"),
    [
        (0, 0, 0, False, ["no_record"]),
        (1, 0, 0, False, []),
        (1, 1, 0, False, ["strike"]),
        (0, 1, 0, False, ["strike"]),
        (1, 0, 1, False, ["finding"]),
        (0, 0, 1, False, ["no_record", "finding"]),
        (0, 1, 1, True, []),
    ],
)
def test_a_person_looks_at_newcomers_strikes_and_findings(
    approved: int, strikes: int, findings: int, platform: bool, reasons: list[str]
) -> None:
    found = [Finding(COPY, "a copy")] * findings
    assert reasons_for_review(Record(approved, strikes, platform), found) == reasons


@pytest.mark.django_db
@pytest.mark.parametrize(("state", "code"), [("open", "not_refused"), ("approved", "not_refused"), ("refused", None)])
@pytest.mark.parametrize("appealed", [False, True])
def test_a_refusal_alone_is_appealed_and_once(state: str, code: str | None, appealed: bool) -> None:
    now, version = timezone.now(), on_sale()
    review, other = (
        Review.objects.create(
            model=one.model,
            kind=Review.Kind.REPORTS,
            state=its,
            reasons=[],
            opened_at=now,
            due_at=now,
            decided_at=None if its == "open" else now,
            appealed_at=now if appealed else None,
        )
        for one, its in ((version, state), (make_version(make_model(slug="other")), "open"))
    )
    if code is None and not appealed:
        assert publishing.appeal_review(review=review, text="It does not.", by=None).state == "open"
    else:
        with pytest.raises(Conflict) as refusal:
            publishing.appeal_review(review=review, text="It does not.", by=None)
        assert refusal.value.code == (code or "appealed_before")
        review.refresh_from_db()
        assert review.state == state
    other.refresh_from_db()
    assert other.appeal == ""


# -- reports --------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("third", ["paid", "free", "its own", "nothing"])
def test_the_third_report_of_a_customer_that_paid_somebody_else_opens_a_review(third: str) -> None:
    version = on_sale()
    assert report_by(version.model, customer("one"), customer("two")) is None
    last = make_organization("three")
    credit_promotion(organization=last, amount_nano_usd=10**9, reference="three")
    if third != "nothing":
        seller = last if third == "its own" else make_organization("another-seller")
        free = {"monthly_free_nano_usd": 10**9} if third == "free" else {}
        settled = settle(place(hold_request(last, seller, **free)).prediction_id)
        assert (settled.cost == 0) is (third == "free")
    assert (report_by(version.model, last) is not None) is (third == "paid")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("reports", "age", "good"), [(9, timedelta(0), True), (10, timedelta(0), False), (10, timedelta(days=1), True)]
)
def test_an_organization_reports_ten_models_in_24_hours_whatever_others_report(
    reports: int, age: timedelta, good: bool
) -> None:
    version, reporter, busy = on_sale(), make_organization("reporter"), make_organization("busy")
    base = version.model.base_model
    models = Model.objects.bulk_create(
        Model(organization=version.model.organization, slug=f"m-{number}", base_model=base, title="M")
        for number in range(reports)
    )
    for one in (reporter, busy):
        Report.objects.bulk_create(Report(model=model, organization=one, reason="other") for model in models)
    Report.objects.filter(organization=reporter).update(created_at=timezone.now() - age - timedelta(seconds=1))
    if good:
        report_by(version.model, reporter)
    else:
        with pytest.raises(TooManyReports):
            report_by(version.model, reporter)
    assert Report.objects.filter(model=version.model).exists() is good


def test_reporters_with_a_member_in_common_are_one_voice_also_over_a_third() -> None:
    one, two, three, four = (uuid.uuid4() for _ in range(4))
    voices = {
        uuid.uuid4(): frozenset({one}),
        uuid.uuid4(): frozenset({two}),
        uuid.uuid4(): frozenset({three}),
    }
    assert independent(voices, frozenset()) == 3
    assert independent(voices | {uuid.uuid4(): frozenset({one, two})}, frozenset()) == 2
    assert independent(voices | {uuid.uuid4(): frozenset({four})}, frozenset({one})) == 3
    assert independent(voices, frozenset({one, two, three})) == 0


@pytest.mark.django_db
@pytest.mark.parametrize(("length", "good"), [(1_000, True), (1_001, False)])
def test_a_report_has_a_thousand_characters(length: int, good: bool) -> None:
    version, reporter = on_sale(), make_organization("reporter")
    fields = {"model": version.model, "organization": reporter, "reason": "other", "by": None}
    if good:
        assert len(publishing.report_model(text="x" * length, **fields).text) == length  # type: ignore[arg-type]
    else:
        with pytest.raises(InvalidInput):
            publishing.report_model(text="x" * length, **fields)  # type: ignore[arg-type]
    assert Report.objects.exists() is good and Version.objects.get(pk=version.pk).state == "published"
