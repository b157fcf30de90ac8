"""A sealed adapter, and a watch on the memory that opening it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import sealed_weights.opened as opened_module
from sealed_weights import SealedPackage
from sealed_weights.secret_memory import SecretBuffer
from tests.sealed_weights.factories import adapter_tensors, seal, write_adapter


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", adapter_tensors(rank=16), r=16)


@pytest.fixture
def package(adapter: Path, tmp_path: Path) -> SealedPackage:
    return seal(adapter, tmp_path / "adapter.sealed")


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[SecretBuffer]:
    """Every secret buffer that opening takes, so that a test can look at what is left in it."""
    taken: list[SecretBuffer] = []

    class Watched(SecretBuffer):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self.alias = memoryview(self._map)  # keeps the mapping readable after it was dropped
            taken.append(self)

    monkeypatch.setattr(opened_module, "SecretBuffer", Watched)
    return taken
