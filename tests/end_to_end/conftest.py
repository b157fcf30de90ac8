"""The real platform, once per test session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.platform import Platform, running_platform


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    with running_platform() as running:
        yield running
