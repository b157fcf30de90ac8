"""A package opens to exactly what was sealed, or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sealed_weights import (
    AuthenticationError,
    FormatError,
    SealedPackage,
    SealError,
    over_chunks,
    package_digest,
    read_header,
    verify_signature,
)
from sealed_weights.secret_memory import SecretBuffer
from tests.sealed_weights.factories import (
    BASE_FINGERPRINT,
    CREATOR_ID,
    DEK,
    IDENTITY,
    MODEL_ID,
    assert_wiped,
    open_it,
    opening_of,
    seal,
    write_adapter,
)


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
def test_missing_and_special_source_files_are_refused(adapter: Path, tmp_path: Path, name: str) -> None:
    (adapter / name).unlink()
    with pytest.raises(FormatError, match=f"{name}: file is missing"):
        seal(adapter, tmp_path / "x")
    (adapter / name).symlink_to("/dev/zero")
    with pytest.raises(FormatError, match="regular file"):
        seal(adapter, tmp_path / "x")
    (adapter / name).unlink()
    os.mkfifo(adapter / name)
    with pytest.raises(FormatError, match="regular file"):
        seal(adapter, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_linked_source_file_is_sealed_as_the_file_it_names(adapter: Path, tmp_path: Path, name: str) -> None:
    content = (adapter / name).read_bytes()
    (adapter / name).rename(tmp_path / "blob")
    (adapter / name).symlink_to(tmp_path / "blob")
    with open_it(seal(adapter, tmp_path / "x").path) as opened:
        assert bytes(opened.config if name == "adapter_config.json" else opened.tensors) == content


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


@pytest.mark.parametrize("threads", [1, 2])
def test_a_caller_may_decrypt_the_chunks_itself_and_give_up_at_each(
    package: SealedPackage, buffers: list[SecretBuffer], threads: int
) -> None:
    with opening_of(package.path) as opening:
        assert not any(buffers[-1].alias)  # type: ignore[attr-defined]  # nothing is decrypted yet
        with pytest.raises(SealError, match="not every chunk"):
            opening.finish()
        done: list[int] = []

        def decrypt(index: int) -> None:
            opening.decrypt(index)
            done.append(index)

        over_chunks(decrypt, opening.header, threads)
        assert sorted(done) == list(range(opening.header.chunk_count)) == [0, 1, 2]
        with opening.finish() as opened:
            assert bytes(opened.config) and any(buffers[-1].alias)  # type: ignore[attr-defined]

    def give_up(index: int) -> None:
        opening.decrypt(index)
        raise TimeoutError("not now")

    with pytest.raises(TimeoutError, match="not now"), opening_of(package.path) as opening:
        over_chunks(give_up, opening.header, threads)
    assert_wiped(buffers)
