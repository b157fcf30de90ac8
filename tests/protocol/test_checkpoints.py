"""The identity of a checkpoint: one for the same files in the same precision, and another for any other precision."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from protocol.checkpoints import AS_STORED, ComputedIn, checkpoint_fingerprint
from protocol.errors import ProtocolError
from protocol.names import is_digest

FILES = "ab" * 32


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_floats_are_the_files_own_checkpoint(dtype: str) -> None:
    computed = ComputedIn.of_flags(dtype=dtype, kv_dtype="auto", adapter_dtype="auto")
    assert computed == AS_STORED and str(computed) == ""
    assert checkpoint_fingerprint(FILES, computed) == FILES


def test_every_other_precision_is_a_checkpoint_of_its_own() -> None:
    every = itertools.product(("float", "int8"), ("float", "int8", "fp8"), ("float", "int8"))
    found = {checkpoint_fingerprint(FILES, ComputedIn(*types)) for types in every}  # type: ignore[arg-type]
    assert len(found) == 12 and all(is_digest(one) for one in found)
    int8 = ComputedIn.of_flags(dtype="int8", kv_dtype="auto", adapter_dtype="auto")
    assert (int8, str(int8)) == (ComputedIn("int8", "int8"), "weights int8, KV int8")
    # Replicas of today and of next year must agree on it.
    assert checkpoint_fingerprint(FILES, int8) == "58cf26622f1fa1191bc7182131f9d22229b33f0e924e1b0924c275e60b60fa19"
    assert checkpoint_fingerprint("cd" * 32, int8) not in found


@pytest.mark.parametrize("types", [("int4",), ("float", "int4"), ("float", "float", "fp8"), ("",)])
def test_a_precision_that_no_replica_has_is_refused(types: Any) -> None:
    with pytest.raises(ProtocolError):
        ComputedIn(*types)
