"""The checkpoint that a replica says it serves: the flags that change its numbers change the fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.checkpoints import ComputedIn, checkpoint_fingerprint
from serving.config import ServingConfig
from serving.platform.launch import served_checkpoint

FILES = "ab" * 32


@pytest.mark.parametrize(
    ("flags", "computed"),
    [
        ({}, ComputedIn()),
        ({"dtype": "float32", "kv_dtype": "bfloat16"}, ComputedIn()),
        ({"dtype": "int8"}, ComputedIn("int8", "int8")),
        ({"dtype": "int8", "kv_dtype": "bfloat16"}, ComputedIn("int8")),
        ({"kv_dtype": "fp8"}, ComputedIn(kv="fp8")),
        ({"adapter_dtype": "int8"}, ComputedIn(adapters="int8")),
    ],
)
def test_a_replica_registers_the_precision_that_it_computes_in(
    tmp_path: Path, flags: dict[str, str], computed: ComputedIn
) -> None:
    (tmp_path / "config.json").write_text("{}")
    config = ServingConfig(model=tmp_path, **flags)  # type: ignore[arg-type]
    assert served_checkpoint(config, FILES) == checkpoint_fingerprint(FILES, computed)
