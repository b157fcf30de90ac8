"""What the engine and HTTP tests share: one tiny model a session."""

from __future__ import annotations

import pytest

from tests.serving.tiny import Tiny, make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))
