"""Format 1 is pinned by files: these tests read them, one with nothing but the specification in hand."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sealed_weights import (
    FormatError,
    PlatformKeypair,
    ReleaseEntry,
    ReplicaKeypair,
    SealedLease,
    SealError,
    SignedCheckpoint,
    open_lease,
    open_package,
    open_rows,
    package_digest,
    parse_reference,
    unwrap_dek_from_creator,
    unwrap_key,
    verify_chain,
    verify_signature,
)
from tests.sealed_weights.factories import adapter_tensors, config_bytes, safetensors_bytes
from tests.sealed_weights.make_vectors import ANSWERS, CONTRACT, ROWS, VECTORS, seal_rows_vector, seal_vector

PACKAGE = VECTORS / "package-v1.sealed"


def load(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return value


def test_the_package_vector_opens_to_its_adapter() -> None:
    vector = load("package-v1")
    public = bytes.fromhex(vector["creator_public"])
    assert package_digest(PACKAGE) == verify_signature(PACKAGE, public) == vector["digest"]
    with open_package(
        PACKAGE,
        dek=bytes.fromhex(vector["dek"]),
        creator_public_key=public,
        expected_digest=vector["digest"],
        max_plaintext=1 << 20,
    ) as opened:
        assert opened.header.chunk_count == 3
        assert bytes(opened.config) == config_bytes({"r": 16})
        assert bytes(opened.tensors) == safetensors_bytes(adapter_tensors(rank=16))


def test_sealing_again_with_the_same_salt_gives_the_same_bytes(tmp_path: Path) -> None:
    digest = seal_vector(tmp_path / "adapter", tmp_path / "again.sealed")
    assert digest == load("package-v1")["digest"]
    assert (tmp_path / "again.sealed").read_bytes() == PACKAGE.read_bytes()


def test_a_reader_written_from_the_specification_alone_opens_the_vector() -> None:
    vector = load("package-v1")
    data = PACKAGE.read_bytes()
    head = data[:164]
    (length,) = struct.unpack(">Q", data[92:100])
    size, count = struct.unpack(">II", data[84:92])
    material = HKDF(
        algorithm=SHA512(),
        length=68,
        salt=head[100:132],
        info=b"intarsia/package/v1" + hashlib.sha256(head[:132]).digest(),
    ).derive(bytes.fromhex(vector["dek"]))
    assert material[32:64] == head[132:]
    plain = b""
    leaves = b""
    for index in range(count):
        stored = data[164 + index * (size + 16) : min(164 + (index + 1) * (size + 16), len(data) - 64)]
        leaves += hashlib.sha256(stored).digest()
        aad = hashlib.sha256(head).digest() + struct.pack(">QQB", index, count, index == count - 1)
        plain += AESGCM(material[:32]).decrypt(material[64:] + struct.pack(">Q", index), stored, aad)
    config_length, tensors_length = struct.unpack(">QQ", plain[:16])
    assert len(plain) == length
    assert plain[16 : 16 + config_length] == config_bytes({"r": 16})
    assert plain[length - tensors_length :] == safetensors_bytes(adapter_tensors(rank=16))

    def canonical(domain: bytes, *fields: bytes) -> bytes:
        parts = [struct.pack(">I", len(domain)), domain, struct.pack(">I", len(fields))]
        return b"".join(parts + [struct.pack(">I", len(field)) + field for field in fields])

    body = hashlib.sha256(head + leaves).digest()
    signature = data[-64:]
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(vector["creator_public"]))
    public.verify(signature, canonical(b"intarsia/package/v1/signature", body))
    assert hashlib.sha256(canonical(b"intarsia/package/v1/digest", body, signature)).hexdigest() == vector["digest"]


def test_the_vector_with_a_contract_opens_to_three_files(tmp_path: Path) -> None:
    vector, package = load("package-v1-contract"), VECTORS / "package-v1-contract.sealed"
    digest = seal_vector(tmp_path / "adapter", tmp_path / "again.sealed", CONTRACT)
    assert digest == vector["digest"] != load("package-v1")["digest"]
    assert (tmp_path / "again.sealed").read_bytes() == package.read_bytes()
    assert package.read_bytes()[8:12] == b"\0\0\0\2" and PACKAGE.read_bytes()[8:12] == b"\0\0\0\1"
    proof = {"creator_public_key": bytes.fromhex(vector["creator_public"]), "expected_digest": digest}
    with open_package(package, dek=bytes.fromhex(vector["dek"]), max_plaintext=1 << 20, **proof) as opened:
        assert opened.contract == vector["contract"].encode()
        assert bytes(opened.config) == config_bytes({"r": 16})
        assert bytes(opened.tensors) == safetensors_bytes(adapter_tensors(rank=16))


@pytest.mark.parametrize(
    ("name", "contract"), [("package-v1-reference", None), ("package-v1-reference-contract", CONTRACT)]
)
def test_the_vectors_with_answers_of_peft_open_to_them(name: str, contract: bytes | None, tmp_path: Path) -> None:
    vector, package = load(name), VECTORS / f"{name}.sealed"
    assert seal_vector(tmp_path / "adapter", tmp_path / "again.sealed", contract, ANSWERS) == vector["digest"]
    assert (tmp_path / "again.sealed").read_bytes() == package.read_bytes()
    assert package.read_bytes()[8:12] == b"\0\0\0\4"
    proof = {"creator_public_key": bytes.fromhex(vector["creator_public"]), "expected_digest": vector["digest"]}
    with open_package(package, dek=bytes.fromhex(vector["dek"]), max_plaintext=1 << 20, **proof) as opened:
        assert opened.reference is not None and parse_reference(opened.reference).answers == ANSWERS
        assert (opened.contract is None) == (contract is None)
        assert bytes(opened.config) == config_bytes({"r": 16})
        assert bytes(opened.tensors) == safetensors_bytes(adapter_tensors(rank=16))


def test_the_old_vector_opens_and_has_no_contract() -> None:
    vector = load("package-v1")
    proof = {"creator_public_key": bytes.fromhex(vector["creator_public"]), "expected_digest": vector["digest"]}
    with open_package(PACKAGE, dek=bytes.fromhex(vector["dek"]), max_plaintext=1 << 20, **proof) as opened:
        assert opened.contract is None and opened.reference is None


def test_the_key_wrap_vector_unwraps() -> None:
    vector = load("key-wrap-v1")
    key = unwrap_key(bytes.fromhex(vector["kek"]), bytes.fromhex(vector["wrapped"]), vector["context"])
    assert key.hex() == vector["key"]


def test_the_platform_wrap_vector_unwraps() -> None:
    vector = load("platform-wrap-v1")
    keypair = PlatformKeypair.from_private_bytes(bytes.fromhex(vector["private"]))
    assert keypair.fingerprint(keypair.public_bytes()) == vector["fingerprint"]
    dek = unwrap_dek_from_creator(
        bytes.fromhex(vector["wrapped"]),
        keypair,
        creator_id=UUID(vector["creator_id"]),
        model_id=UUID(vector["model_id"]),
        version=vector["version"],
        digest=vector["digest"],
    )
    assert dek.hex() == vector["dek"]


def test_the_lease_vector_opens() -> None:
    vector = load("lease-v1")
    lease = SealedLease.from_json(vector["lease"])
    assert lease.grant.info().hex() == vector["info"]
    replica = ReplicaKeypair.from_private_bytes(bytes.fromhex(vector["replica_private"]))
    assert open_lease(lease, replica, bytes.fromhex(vector["vault_public"])).hex() == vector["dek"]


@pytest.mark.parametrize("rows", [2, 1])
def test_the_release_log_vector_verifies_and_its_truncation_does_not(rows: int) -> None:
    vector = load("release-log-v2")
    entries = [ReleaseEntry.from_json(entry) for entry in vector["entries"]][:rows]
    checkpoint = SignedCheckpoint.from_json(vector["checkpoint"])
    public = bytes.fromhex(vector["vault_public"])
    if rows == 2:
        verify_chain(entries, checkpoint=checkpoint, vault_public=public)
    else:
        with pytest.raises(Exception, match="release 2: is missing"):
            verify_chain(entries, checkpoint=checkpoint, vault_public=public)


def test_the_rows_vector_opens_to_its_rows_and_nowhere_else(tmp_path: Path) -> None:
    vector, package = load("package-v1-rows"), VECTORS / "package-v1-rows.sealed"
    names: dict[str, Any] = {
        "dek": bytes.fromhex(vector["dek"]),
        "creator_public_key": bytes.fromhex(vector["creator_public"]),
        "expected_digest": vector["digest"],
        "max_plaintext": 1 << 20,
    }
    with open_rows(package, **names) as opened:
        assert bytes(opened.rows) == ROWS and opened.header.chunk_count == 2
    assert not opened.locked
    with pytest.raises(SealError):
        _ = opened.rows
    with pytest.raises(FormatError, match="suite"):
        open_package(package, **names)
    adapter = load("package-v1")
    with pytest.raises(FormatError, match="suite"):
        open_rows(PACKAGE, **names | {"expected_digest": adapter["digest"]})
    assert seal_rows_vector(tmp_path / "again.sealed") == vector["digest"]
    assert (tmp_path / "again.sealed").read_bytes() == package.read_bytes()
