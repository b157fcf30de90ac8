"""Both versions of a rollout are compared by blocks, and one that is worse beyond chance is stopped."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from marketplace.alerts.models import Alert
from marketplace.catalog.models import Rollout, Version
from marketplace.watch.models import Block
from marketplace.watch.rollouts import compare, stop_worse_rollouts
from marketplace.watch.sums import Sums
from tests.marketplace.catalog.factories import make_version
from tests.marketplace.watch.calls import CONTRACT, HOUR, hours_ago

pytestmark = pytest.mark.django_db


def running() -> Rollout:
    first = make_version()
    second = make_version(first.model)
    Version.objects.update(contract=CONTRACT)
    return Rollout.objects.create(
        model=first.model, version=second, baseline=first, percent=10, started_at=timezone.now() - timedelta(days=1)
    )


def block(version: Version, hours: int, **sums: object) -> None:
    start = hours_ago(hours)
    Block.objects.create(version_id=version.pk, start=start, end=start + HOUR, **Sums(**sums).columns())


def test_blocks_since_its_beginning_are_compared() -> None:
    rollout = running()
    block(rollout.baseline, 48, calls=999)
    block(rollout.baseline, 3, calls=90, failures=10, spent_nano_usd=9_000, finish={"stop": 81})
    before, now = compare(rollout)
    assert (before.sums.calls, before.error_percent, before.valid_percent) == (90, 10.0, 90.0)
    assert before.nano_usd_per_call == 100 and before.p95_ms is None
    assert now.error_percent is now.valid_percent is now.nano_usd_per_call is None


@pytest.mark.parametrize(
    ("sums", "is_worse"),
    [
        ({"calls": 20, "failures": 1, "finish": {"stop": 20}}, False),
        ({"calls": 60, "failures": 40, "finish": {"stop": 60}}, True),
        ({"calls": 100, "finish": {"stop": 50, "length": 50}}, True),
        ({"calls": 100, "finish": {"stop": 94, "length": 6}}, False),
    ],
)
def test_a_version_that_is_worse_beyond_chance_is_stopped_once(sums: dict[str, object], is_worse: bool) -> None:
    rollout = running()
    block(rollout.baseline, 3, calls=990, failures=10, finish={"stop": 970, "length": 20})
    block(rollout.version, 3, **sums)
    assert (stop_worse_rollouts(), stop_worse_rollouts()) == (int(is_worse), 0)
    rollout.refresh_from_db()
    assert rollout.outcome == ("stopped" if is_worse else "")
    assert Alert.objects.filter(kind="model.rollout").count() == int(is_worse)
