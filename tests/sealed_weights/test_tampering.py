"""Flip, swap, reorder, repeat, drop, cut, extend, roll back, wrong key, wrong signer: every one is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sealed_weights import (
    AuthenticationError,
    CommitmentError,
    CreatorIdentity,
    FormatError,
    PackageHeader,
    SealedPackage,
    SealError,
    SignatureError,
    package_digest,
    verify_signature,
)
from sealed_weights.header import HEADER_SIZE, TAG_SIZE
from sealed_weights.secret_memory import SecretBuffer
from tests.sealed_weights.factories import CREATOR_ID, IDENTITY, MODEL_ID, assert_wiped, open_it, seal

STORED_CHUNK = 4096 + TAG_SIZE


def test_no_byte_of_a_package_can_be_flipped(package: SealedPackage, buffers: list[SecretBuffer]) -> None:
    data = bytearray(package.path.read_bytes())
    with package.path.open("r+b", buffering=0) as file:
        for offset in range(len(data)):
            bits = range(8) if offset < HEADER_SIZE or offset >= len(data) - 80 else [offset % 8]
            for bit in bits:
                os.pwrite(file.fileno(), bytes([data[offset] ^ 1 << bit]), offset)
                with pytest.raises(SealError):
                    open_it(package.path)
            os.pwrite(file.fileno(), data[offset : offset + 1], offset)
            assert_wiped(buffers)
            buffers.clear()
    open_it(package.path, expected_digest=package.digest).wipe()


def test_no_byte_can_be_flipped_unnoticed_by_a_server_without_the_key(package: SealedPackage) -> None:
    data = bytearray(package.path.read_bytes())
    with package.path.open("r+b", buffering=0) as file:
        for offset in range(0, len(data)):
            os.pwrite(file.fileno(), bytes([data[offset] ^ 1 << offset % 8]), offset)
            with pytest.raises((FormatError, SignatureError)):
                verify_signature(package.path, IDENTITY.public_bytes())
            os.pwrite(file.fileno(), data[offset : offset + 1], offset)


def chunks_of(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    body = data[HEADER_SIZE:-64]
    return data[:HEADER_SIZE], [body[i : i + STORED_CHUNK] for i in range(0, len(body), STORED_CHUNK)], data[-64:]


def test_chunks_cannot_be_swapped_reordered_repeated_or_dropped(
    package: SealedPackage, tmp_path: Path, buffers: list[SecretBuffer]
) -> None:
    header, chunks, footer = chunks_of(package.path.read_bytes())
    first, second, last = chunks
    for order in ([second, first, last], [first, first, last], [last, second, first], [first, last], [*chunks, last]):
        forged = tmp_path / "forged"
        forged.write_bytes(header + b"".join(order) + footer)
        with pytest.raises(SealError):
            open_it(forged)
        with pytest.raises(SealError):
            verify_signature(forged, IDENTITY.public_bytes())
    assert_wiped(buffers)


def test_a_chunk_of_another_package_under_the_same_key_is_refused(
    package: SealedPackage, adapter: Path, tmp_path: Path
) -> None:
    other = seal(adapter, tmp_path / "other")
    header, chunks, footer = chunks_of(package.path.read_bytes())
    forged = tmp_path / "forged"
    forged.write_bytes(header + chunks[0] + chunks_of(other.path.read_bytes())[1][1] + chunks[2] + footer)
    with pytest.raises(AuthenticationError, match="chunk 1"):
        open_it(forged)


@pytest.mark.parametrize("size", [0, 1, 163, 164, 165, 4276, -1, -64, -65])
def test_a_truncated_package_is_refused(package: SealedPackage, size: int) -> None:
    data = package.path.read_bytes()
    package.path.write_bytes(data[:size])
    for check in (open_it, package_digest):
        with pytest.raises(FormatError):
            check(package.path)


def test_an_extended_package_is_refused(package: SealedPackage) -> None:
    with package.path.open("ab") as file:
        file.write(b"\0")
    for check in (open_it, package_digest):
        with pytest.raises(FormatError, match="package size"):
            check(package.path)


def test_an_older_version_is_refused_where_a_newer_digest_is_expected(adapter: Path, tmp_path: Path) -> None:
    old = seal(adapter, tmp_path / "old", version=1)
    new = seal(adapter, tmp_path / "new", version=2)
    with pytest.raises(AuthenticationError, match="rolled back"):
        open_it(old.path, expected_digest=new.digest)


def test_a_wrong_dek_fails_the_commitment_before_memory_is_taken(
    package: SealedPackage, buffers: list[SecretBuffer]
) -> None:
    with pytest.raises(CommitmentError):
        open_it(package.path, dek=bytes(32))
    assert buffers == []


def test_every_changed_header_field_fails_the_commitment(package: SealedPackage) -> None:
    data = package.path.read_bytes()
    header = package.header
    changed: list[PackageHeader] = [
        replace(header, creator_id=MODEL_ID),
        replace(header, model_id=CREATOR_ID),
        replace(header, version=2),
        replace(header, base_fingerprint=bytes(32)),
        replace(header, salt=bytes(32)),
        replace(header, commitment=bytes(32)),
    ]
    for forged in changed:
        package.path.write_bytes(forged.to_bytes() + data[HEADER_SIZE:])
        with pytest.raises(CommitmentError):
            open_it(package.path)


def test_another_signer_is_refused_and_the_plaintext_wiped(package: SealedPackage, buffers: list[SecretBuffer]) -> None:
    stranger = CreatorIdentity.generate().public_bytes()
    with pytest.raises(SignatureError):
        open_it(package.path, creator_public_key=stranger)
    with pytest.raises(SignatureError):
        verify_signature(package.path, stranger)
    assert len(buffers) == 1
    assert_wiped(buffers)
