"""Fixtures of every test of the API."""

from __future__ import annotations

import dataclasses

import pytest
from django.core.cache import cache


@pytest.fixture(autouse=True)
def _api_alone(settings, tmp_path) -> None:
    """URLs of the control API alone, a package store of the test's own, no throttle used up."""
    cache.clear()
    settings.ROOT_URLCONF = "tests.marketplace.api.urls"
    settings.ENV = dataclasses.replace(settings.ENV, blob_dir=tmp_path / "blobs")
