"""An adapter that a tool saved in several files is refused as a part, and not as a file that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealed_weights import IntakeError, check_adapter
from tests.sealed_weights.factories import BASE, write_adapter


@pytest.mark.parametrize("whole", [True, False])
def test_a_part_of_an_adapter_is_named(tmp_path: Path, whole: bool) -> None:
    folder = write_adapter(tmp_path / "adapter")
    check_adapter(folder, BASE)
    tensors = folder / "adapter_model.safetensors"
    (folder / "adapter_model-00001-of-00002.safetensors").write_bytes(tensors.read_bytes())
    if not whole:
        tensors.unlink()
    with pytest.raises(IntakeError, match=r"adapter_model-00001-of-00002\.safetensors: is one part of an adapter"):
        check_adapter(folder, BASE)
