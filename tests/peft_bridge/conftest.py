"""One tiny base for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A creator's folder with a base in it."""
    from tests.peft_bridge.folders import write_base  # imports PEFT, which takes seconds

    folder = tmp_path_factory.mktemp("creator")
    write_base(folder / "base")
    return folder
