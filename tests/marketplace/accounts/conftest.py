"""Fixtures of every test of this app."""

from __future__ import annotations

import dataclasses

import pytest


@pytest.fixture(autouse=True)
def _separate(settings, tmp_path) -> None:
    """A package store of the test's own."""
    settings.ENV = dataclasses.replace(settings.ENV, blob_dir=tmp_path / "blobs")
