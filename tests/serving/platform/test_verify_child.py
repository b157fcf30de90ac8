"""The confined child that opens strangers' adapters: what it accepts, what it refuses, and what it cannot do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.leases import PackageIdentity
from protocol.lineage import read_sketch
from sealed_weights import CreatorIdentity, SealedPackage
from serving.platform import verify_process
from serving.platform.errors import VerificationFailed
from serving.platform.link import HeldKey
from serving.platform.verify_process import check_in_child
from tests.sealed_weights import factories
from tests.sealed_weights.factories import (
    BASE,
    BASE_FINGERPRINT,
    CREATOR_ID,
    DEK,
    IDENTITY,
    MODEL_ID,
    adapter_tensors,
    seal,
    write_adapter,
)

REPOSITORY = Path(__file__).resolve().parents[3]
NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def key_for(package: SealedPackage, **changes: Any) -> HeldKey:
    fields: dict[str, Any] = {
        "release_id": "r",
        "digest": package.digest,
        "dek": bytearray(DEK),
        "creator_public_key": IDENTITY.public_bytes(),
        "identity": PackageIdentity(CREATOR_ID, MODEL_ID, 1, BASE_FINGERPRINT.hex()),
        "package_size": package.size,
    }
    return HeldKey(**(fields | changes))


def run_child(path: Path, key: HeldKey, base: Any, **changes: Any) -> Any:
    """The verdict alone."""
    return check_in_child(path, key, base, **changes).verification


@pytest.fixture
def sealed(tmp_path: Path) -> Callable[..., SealedPackage]:
    def make(tensors: Any = None, **config: Any) -> SealedPackage:
        folder = write_adapter(tmp_path / "adapter", tensors, **config)
        return seal(folder, tmp_path / "package")

    return make


def test_a_good_adapter_is_reported(sealed: Callable[..., SealedPackage]) -> None:
    package = sealed()
    answer = run_child(package.path, key_for(package), BASE)
    assert answer.ok, answer
    report = answer.report
    assert (report["rank"], report["dtype"], report["tensor_count"]) == (2, "F32", 8)
    assert report["targets"] == ["self_attn.q_proj", "self_attn.v_proj"]
    assert report["parameters"] == 2 * (2 * 16 + 16 * 2 + 2 * 16 + 8 * 2)
    assert any(read_sketch(report["sketch"])), "256 numbers by which a copy of the weights is known"


def _with(values: Any, name: str = NAME) -> dict[str, Any]:
    return adapter_tensors() | {name: factories.tensor(values)}


@pytest.mark.parametrize(
    ("tensors", "rule"),
    [
        (_with(np.full((2, 16), np.nan)), "finite"),
        (_with(np.full((2, 16), np.inf)), "finite"),
        (_with(np.full((2, 16), 1e6)), "norm"),
        (_with(np.zeros((2, 17))), "shape"),
        (_with(np.zeros((4, 16))), "shape"),
        (_with(np.zeros((2, 16)), "base_model.model.evil.lora_A.weight"), "must be base_model"),
        ({name: t for name, t in adapter_tensors().items() if name != NAME}, "missing"),
    ],
)
def test_a_bad_tensor_is_refused_by_name_and_rule(
    sealed: Callable[..., SealedPackage], tensors: dict[str, Any], rule: str
) -> None:
    package = sealed(tensors)
    answer = run_child(package.path, key_for(package), BASE)
    assert not answer.ok
    assert rule in answer.refusal.rule and answer.refusal.field in answer.refusal.message


@pytest.mark.parametrize(
    ("contract", "field"),
    [
        (b"{}", "contract.json contract"),
        (b"not JSON", "contract.json"),
        (b'{"contract": 1, "instructions": "x", "max_tokens": -1}', "contract.json max_tokens"),
    ],
)
def test_a_bad_contract_that_another_tool_sealed_is_refused_by_field(
    sealed: Callable[..., SealedPackage], monkeypatch: pytest.MonkeyPatch, contract: bytes, field: str
) -> None:
    monkeypatch.setattr("sealed_weights.package.contract_bytes", lambda folder: contract)
    package = sealed()
    refusal = run_child(package.path, key_for(package), BASE).refusal
    assert refusal.field == field and refusal.rule


def test_an_adapter_over_the_size_limit_is_refused_before_memory_is_taken(sealed: Callable[..., SealedPackage]) -> None:
    package = sealed()
    answer = run_child(package.path, key_for(package), BASE, max_plaintext=1000)
    assert not answer.ok and "at most 1000 bytes" in answer.refusal.message


@pytest.mark.parametrize(
    "changes",
    [
        {"dek": bytearray(32)},
        {"creator_public_key": CreatorIdentity.generate().public_bytes()},
        {"digest": "00" * 32},
        {"identity": PackageIdentity(MODEL_ID, MODEL_ID, 1, BASE_FINGERPRINT.hex())},
        {"identity": PackageIdentity(CREATOR_ID, CREATOR_ID, 1, BASE_FINGERPRINT.hex())},
        {"identity": PackageIdentity(CREATOR_ID, MODEL_ID, 2, BASE_FINGERPRINT.hex())},
        {"identity": PackageIdentity(CREATOR_ID, MODEL_ID, 1, "00" * 32)},
    ],
)
def test_a_package_that_is_not_the_one_the_vault_names_is_refused(
    sealed: Callable[..., SealedPackage], changes: dict[str, Any]
) -> None:
    package = sealed()
    answer = run_child(package.path, key_for(package, **changes), BASE)
    assert not answer.ok and answer.refusal.field == "package"


def test_a_truncated_package_is_refused(sealed: Callable[..., SealedPackage]) -> None:
    package = sealed()
    package.path.write_bytes(package.path.read_bytes()[:-1])
    assert not run_child(package.path, key_for(package), BASE).ok


def test_a_child_that_takes_too_long_is_killed_and_the_adapter_refused(
    sealed: Callable[..., SealedPackage], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = sealed()
    monkeypatch.setattr(verify_process, "CHILD_SECONDS", 0.01)
    answer = run_child(package.path, key_for(package), BASE)
    assert answer.refusal.message == "the check took too long"


def test_a_child_that_cannot_work_says_nothing_about_the_adapter(
    sealed: Callable[..., SealedPackage], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = sealed()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(VerificationFailed):
        run_child(package.path, key_for(package), BASE)


CONFINED = """
import resource, sys
from serving.platform.confinement import confine
confine(memory=1 << 30, cpu_seconds=1)
try:
    with open(sys.argv[1], "wb") as file:
        file.write(b"plaintext")
    print("wrote")
except OSError as error:
    print("refused")
try:
    bytearray(2 << 30)
    print("allocated")
except MemoryError:
    print("refused")
sys.stdout.flush()
while True:
    pass
"""


def test_the_child_can_write_no_file_and_takes_no_more_memory_or_time_than_allowed(tmp_path: Path) -> None:
    target = tmp_path / "leak"
    done = subprocess.run(
        [sys.executable, "-c", CONFINED, str(target)], cwd=REPOSITORY, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.split() == ["refused", "refused"]
    assert done.returncode < 0  # ended by the processor-time limit
    assert not target.exists() or target.stat().st_size == 0
