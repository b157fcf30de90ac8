"""Fixtures of the engine and HTTP tests: one tiny model per session."""

from __future__ import annotations

import pytest

from tests.serving.tiny import Tiny, make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))
