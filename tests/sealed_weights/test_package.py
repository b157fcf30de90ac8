"""A package opens to exactly what was sealed, or not at all."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sealed_weights.opened as opened_module
from sealed_weights import (
    AuthenticationError,
    CommitmentError,
    CreatorIdentity,
    FormatError,
    OpenedPackage,
    PackageHeader,
    SealedPackage,
    SealError,
    SignatureError,
    open_package,
    package_digest,
    read_header,
    verify_signature,
)
from sealed_weights.header import HEADER_SIZE, TAG_SIZE
from sealed_weights.secret_memory import SecretBuffer
from tests.sealed_weights.factories import (
    BASE_FINGERPRINT,
    CREATOR_ID,
    DEK,
    IDENTITY,
    MODEL_ID,
    adapter_tensors,
    seal,
    write_adapter,
)

STORED_CHUNK = 4096 + TAG_SIZE


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", adapter_tensors(rank=16), r=16)


@pytest.fixture
def package(adapter: Path, tmp_path: Path) -> SealedPackage:
    return seal(adapter, tmp_path / "adapter.sealed")


def open_it(path: Path, **changes: Any) -> OpenedPackage:
    arguments: dict[str, Any] = {
        "dek": DEK,
        "creator_public_key": IDENTITY.public_bytes(),
        "expected_digest": None,
        "max_plaintext": 1 << 30,
    }
    return open_package(path, **(arguments | changes))


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


def assert_wiped(buffers: list[SecretBuffer]) -> None:
    for buffer in buffers:
        assert not any(buffer.alias)  # type: ignore[attr-defined]


def test_an_opened_package_holds_the_exact_bytes_of_both_files(package: SealedPackage, adapter: Path) -> None:
    with open_it(package.path, expected_digest=package.digest) as opened:
        assert bytes(opened.config) == (adapter / "adapter_config.json").read_bytes()
        assert bytes(opened.tensors) == (adapter / "adapter_model.safetensors").read_bytes()
        assert opened.digest == package.digest
        assert opened.header == package.header == read_header(package.path)
        assert np.frombuffer(opened.tensors, np.uint8).ctypes.data % 64 == 0


def test_the_header_says_what_was_sealed_and_the_file_shows_no_plaintext(package: SealedPackage) -> None:
    header = package.header
    assert (header.creator_id, header.model_id, header.version) == (CREATOR_ID, MODEL_ID, 1)
    assert (header.base_fingerprint, header.chunk_count) == (BASE_FINGERPRINT, 3)
    data = package.path.read_bytes()
    assert package.size == len(data) == header.package_size
    for secret in (b"lora_A", b"q_proj", b"target_modules", DEK):
        assert secret not in data


def test_digest_and_signature_need_no_dek(package: SealedPackage) -> None:
    seen: list[tuple[int, int]] = []
    assert package_digest(package.path, progress=lambda done, total: seen.append((done, total))) == package.digest
    assert verify_signature(package.path, IDENTITY.public_bytes()) == package.digest
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (package.size - 64, package.size)


def test_sealing_twice_uses_a_fresh_salt_and_so_another_digest(adapter: Path, tmp_path: Path) -> None:
    first, second = seal(adapter, tmp_path / "a"), seal(adapter, tmp_path / "b")
    assert first.header.salt != second.header.salt
    assert first.digest != second.digest


def test_sealing_reports_progress_to_the_end(adapter: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    package = seal(adapter, tmp_path / "a", progress=lambda done, total: seen.append((done, total)))
    total = package.header.plaintext_length
    assert seen == [(4096, total), (8192, total), (total, total)]


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


def test_too_much_plaintext_is_refused_before_memory_is_taken(
    package: SealedPackage, buffers: list[SecretBuffer]
) -> None:
    with pytest.raises(FormatError, match="plaintext_length"):
        open_it(package.path, max_plaintext=package.header.plaintext_length - 1)
    assert buffers == []


def test_wiping_zeroes_what_arrays_over_the_plaintext_still_see(package: SealedPackage) -> None:
    with open_it(package.path) as opened:
        array = np.frombuffer(opened.tensors, np.uint8)
        view = opened.config
        assert array.any()
    assert not array.any()
    assert not any(view)
    opened.wipe()
    with pytest.raises(SealError, match="wiped"):
        _ = opened.tensors


def test_an_error_inside_the_with_block_still_wipes(package: SealedPackage, buffers: list[SecretBuffer]) -> None:
    with pytest.raises(RuntimeError), open_it(package.path):
        raise RuntimeError
    assert_wiped(buffers)


@pytest.mark.parametrize("threads", [2, 5])
def test_many_threads_give_the_same_bytes_and_the_same_refusals(
    tmp_path: Path, threads: int, buffers: list[SecretBuffer]
) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    content = os.urandom(200_000)
    (adapter / "adapter_model.safetensors").write_bytes(content)
    package = seal(adapter, tmp_path / "large")
    before = threading.active_count()
    with open_it(package.path, threads=threads, expected_digest=package.digest) as opened:
        assert bytes(opened.tensors) == content
    data = bytearray(package.path.read_bytes())
    data[100_000] ^= 1
    package.path.write_bytes(data)
    with pytest.raises(AuthenticationError, match="chunk 24"):
        open_it(package.path, threads=threads)
    assert_wiped(buffers)
    assert threading.active_count() == before


def test_a_failed_seal_leaves_the_destination_as_it_was(adapter: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "adapter.sealed"
    target.parent.mkdir()
    target.write_bytes(b"before")

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seal(adapter, target, progress=interrupt)
    assert target.read_bytes() == b"before"
    assert list(target.parent.iterdir()) == [target]


def test_a_package_is_private_to_its_owner(package: SealedPackage) -> None:
    assert stat.S_IMODE(package.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_linked_missing_and_special_source_files_are_refused(adapter: Path, tmp_path: Path, name: str) -> None:
    (adapter / name).unlink()
    with pytest.raises(FormatError, match=f"{name}: file is missing"):
        seal(adapter, tmp_path / "x")
    (adapter / name).symlink_to("/etc/hostname")
    with pytest.raises(FormatError, match="symbolic link"):
        seal(adapter, tmp_path / "x")
    (adapter / name).unlink()
    os.mkfifo(adapter / name)
    with pytest.raises(FormatError, match="regular file"):
        seal(adapter, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": 0}, "version"),
        ({"base_fingerprint": b"short"}, "base_fingerprint"),
        ({"dek": b"short"}, "dek"),
        ({"chunk_size": 5000}, "chunk_size"),
    ],
)
def test_bad_arguments_are_refused_by_name(adapter: Path, tmp_path: Path, change: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError, match=field):
        seal(adapter, tmp_path / "x", **change)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("config_size", [1, 4079, 4080, 4081, 9000])
def test_any_split_of_the_frame_over_chunks_round_trips(tmp_path: Path, config_size: int) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    (adapter / "adapter_config.json").write_bytes(b"c" * config_size)
    (adapter / "adapter_model.safetensors").write_bytes(b"t" * 77)
    package = seal(adapter, tmp_path / "x")
    with open_it(package.path) as opened:
        assert bytes(opened.config) == b"c" * config_size
        assert bytes(opened.tensors) == b"t" * 77


def test_a_dek_in_wipeable_memory_works_and_is_left_alone(adapter: Path, tmp_path: Path) -> None:
    dek = bytearray(DEK)
    package = seal(adapter, tmp_path / "x", dek=dek)
    open_it(package.path, dek=dek).wipe()
    assert dek == DEK
