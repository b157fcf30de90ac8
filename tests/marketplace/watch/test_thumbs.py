"""Thumbs are shown twenty at a time, of three organizations, when they cannot change any more."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from marketplace.watch.models import Thumb, ThumbTotal
from marketplace.watch.thumbs import count_thumbs

pytestmark = pytest.mark.django_db
VERSION = uuid.UUID(int=2)


def give(organization: int, count: int, *, is_up: bool = True, hours: int = 25) -> None:
    at = timezone.now() - timedelta(hours=hours)
    Thumb.objects.bulk_create(
        Thumb(
            prediction_id=uuid.uuid4(),
            organization_id=uuid.UUID(int=organization),
            version_id=VERSION,
            is_up=is_up,
            created_at=at,
        )
        for _ in range(count)
    )


def test_thumbs_are_added_when_enough_of_them_are_final() -> None:
    give(1, 10)
    give(2, 15, is_up=False)
    assert count_thumbs() == 0, "two organizations"
    give(3, 1, hours=23)
    assert count_thumbs() == 0, "the third can still change"
    Thumb.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert (count_thumbs(), count_thumbs()) == (26, 0)
    total = ThumbTotal.objects.get()
    assert (total.up, total.down) == (11, 15)
    give(1, 1)
    give(2, 1)
    give(3, 17)
    assert count_thumbs() == 0 and ThumbTotal.objects.get().up == 11, "nineteen more"
    give(3, 1)
    assert count_thumbs() == 20 and ThumbTotal.objects.get().up == 31
