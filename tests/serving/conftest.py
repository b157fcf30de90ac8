"""Fixtures of the engine and HTTP tests: one tiny model per session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.serving.tiny import Tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    # Imported late: the GPU tests below this folder start without transformers and PEFT.
    from tests.serving.tiny import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))
