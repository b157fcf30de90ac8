"""The announced end of a version: notice, those who are told of it, and its day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing.models import EarningsDay
from marketplace.accounts.audit import PLATFORM
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.accounts.models import Organization
from marketplace.alerts.models import Alert
from marketplace.catalog import selectors
from marketplace.catalog.models import Version
from marketplace.catalog.services.listings import ListingText
from marketplace.publishing import services as publishing
from marketplace.publishing.tasks import end_versions, tell_of_ends
from tests.database import as_superuser
from tests.marketplace.accounts.acts import acts_of
from tests.marketplace.catalog.factories import make_organization, make_version
from tests.marketplace.watch.calls import book, usage

pytestmark = pytest.mark.django_db


def announce(version: Version, days: float, replacement: Version | None = None) -> Version:
    ends_at = timezone.now() + timedelta(days=days, minutes=1)
    return publishing.announce_end(version=version, ends_at=ends_at, replacement=replacement, actor=PLATFORM)


def told() -> list[tuple[Any, str]]:
    return [(one.organization_id, one.subject) for one in Alert.objects.filter(kind="model.ending").order_by("id")]


def use(version: Version, *buyers: Organization, days_ago: int = 0) -> None:
    """Book a call by each, with the sums of that day."""
    at = datetime.now(UTC) - timedelta(days=days_ago)
    book([usage(version, buyer, at) for buyer in buyers])
    sums = {"charged_nano_usd": 1, "earned_nano_usd": 1, "predictions": 1, "model_name": "acme/triage"}
    tokens = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1}
    place = {"reason": "creator", "latency_class": "standard", "model_id": version.model_id, "version_id": version.pk}
    with as_superuser():
        EarningsDay.objects.get_or_create(
            organization_id=version.model.organization_id, day=at.date(), **place, defaults=sums | tokens
        )


def bring_forward(version: Version, **until: float) -> None:
    """Let the end be so near, as if the time until then had passed."""
    now = timezone.now()
    Version.objects.filter(pk=version.pk).update(
        deprecated_at=now - timedelta(days=30), ends_at=now + timedelta(**until)
    )


def test_customers_of_the_last_month_are_told_once_and_it_ends_on_its_day() -> None:
    first = make_version()
    second = make_version(first.model)
    buyer, late, gone = (make_organization() for _ in range(3))
    creator = first.model.organization
    use(first, buyer, creator)
    use(first, gone, days_ago=31)
    announce(first, 30, second)
    tell_of_ends()
    name = f"{first.model.full_name}@1"
    assert told() == [(buyer.pk, f"{name} ends on {first.ends_at:%-d %b %Y}")]
    assert f"{first.model.full_name}@2" in Alert.objects.get(kind="model.ending").text
    use(first, late)
    tell_of_ends()
    tell_of_ends()
    assert [one for one, _ in told()] == [buyer.pk, late.pk], "who begins to call it is told as well"
    bring_forward(first, minutes=-1)
    end_versions()
    first.refresh_from_db()
    assert first.state == Version.State.RETIRED
    assert selectors.default_version(model=first.model) == second
    assert acts_of(creator, "version.retired", "version.deprecated") == ["version.retired", "version.deprecated"]


def test_whoever_still_calls_it_in_the_last_week_is_told_once_more() -> None:
    version = make_version()
    buyer = make_organization()
    use(version, buyer)
    announce(version, 30)
    bring_forward(version, days=8)
    tell_of_ends()
    assert len(told()) == 2, "another end is told anew"
    bring_forward(version, days=6)
    tell_of_ends()
    tell_of_ends()
    assert len(told()) == 4, "this end, and its last word"


def test_notice_is_at_least_two_weeks_and_a_month_for_a_version_in_use() -> None:
    version, another = make_version(), make_version()
    for days in (-1, 13, 800):
        with pytest.raises(InvalidInput):
            announce(version, days)
    assert announce(version, 14).ends_at is not None
    use(version, make_organization())
    with pytest.raises(InvalidInput):
        announce(version, 29)
    for replacement in (version, another):
        with pytest.raises(InvalidInput):
            announce(version, 40, replacement)
    with pytest.raises(Conflict):
        announce(make_version(version.model, Version.State.VERIFIED), 40)
    assert told() == [], "nobody was told of what was refused"


def test_an_end_that_was_taken_back_is_told_to_those_who_knew() -> None:
    version, buyer = make_version(), make_organization()
    use(version, buyer)
    announce(version, 30)
    publishing.cancel_end(version=version, actor=PLATFORM)
    assert (version.ends_at, version.deprecated_at) == (None, None)
    assert [subject for _, subject in told()][1:] == [f"{version.model.full_name}@1 stays"]
    with pytest.raises(Conflict):
        publishing.cancel_end(version=version, actor=PLATFORM)


def test_a_version_in_use_is_retired_after_notice_alone_also_once_it_is_unlisted() -> None:
    version = make_version()
    use(version, make_organization())
    unlisted, private = ListingText(visibility="unlisted"), ListingText(visibility="private")
    publishing.change_listing(model=version.model, text=unlisted)
    for act in (
        lambda: publishing.retire_version(version=version),
        lambda: publishing.change_listing(model=version.model, text=private),
    ):
        with pytest.raises(Conflict) as refusal:
            act()
        assert refusal.value.code == "in_use"
    version.refresh_from_db()
    assert (version.state, version.model.visibility) == (Version.State.PUBLISHED, "unlisted")
    unused = make_version()
    publishing.change_listing(model=unused.model, text=private)
    publishing.retire_version(version=unused)
    assert unused.state == Version.State.RETIRED


def test_a_changelog_is_changed_until_the_version_is_published() -> None:
    version = make_version(state=Version.State.VERIFIED)
    publishing.change_changelog(version=version, text="  Fewer wrong refunds. ", actor=PLATFORM)
    assert version.changelog == "Fewer wrong refunds."
    with pytest.raises(InvalidInput):
        publishing.change_changelog(version=version, text="x" * 10_001, actor=PLATFORM)
    publishing.publish_version(version=version)
    with pytest.raises(Conflict):
        publishing.change_changelog(version=version, text="Other words.", actor=PLATFORM)
    version.refresh_from_db()
    assert version.changelog == "Fewer wrong refunds."
