"""The key hierarchy: file root key, wraps bound to their context."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path
from uuid import uuid4

import pytest

from sealed_weights import (
    AuthenticationError,
    FileKeyProvider,
    FormatError,
    KeyFileError,
    create_creator_kek,
    generate_key,
    open_creator_kek,
    unwrap_key,
    wrap_key,
)

CONTEXT = {"model_id": "m", "version": "1"}


def test_the_hierarchy_unwraps_from_root_to_dek(tmp_path: Path) -> None:
    creator = uuid4()
    dek = generate_key()
    stored_kek = create_creator_kek(FileKeyProvider(tmp_path / "root.key"), creator)
    kek = open_creator_kek(FileKeyProvider(tmp_path / "root.key"), stored_kek, creator)
    assert unwrap_key(kek, wrap_key(kek, dek, CONTEXT), CONTEXT) == dek
    assert kek not in stored_kek


def test_a_creators_kek_does_not_open_as_another_creators(tmp_path: Path) -> None:
    provider = FileKeyProvider(tmp_path / "root.key")
    with pytest.raises(AuthenticationError):
        open_creator_kek(provider, create_creator_kek(provider, uuid4()), uuid4())


def test_another_root_key_opens_nothing(tmp_path: Path) -> None:
    wrapped = FileKeyProvider(tmp_path / "a").wrap(b"k" * 32, CONTEXT)
    with pytest.raises(AuthenticationError):
        FileKeyProvider(tmp_path / "b").unwrap(wrapped, CONTEXT)


def test_no_byte_of_a_wrap_can_be_changed() -> None:
    kek = generate_key()
    wrapped = wrap_key(kek, b"k" * 32, CONTEXT)
    for offset in range(len(wrapped)):
        changed = bytearray(wrapped)
        changed[offset] ^= 1
        with pytest.raises((AuthenticationError, FormatError)):
            unwrap_key(kek, bytes(changed), CONTEXT)
    for size in range(len(wrapped)):
        with pytest.raises((AuthenticationError, FormatError)):
            unwrap_key(kek, wrapped[:size], CONTEXT)


@pytest.mark.parametrize(
    "context", [{}, {"model_id": "m"}, CONTEXT | {"version": "2"}, {"model_id": "mversion", "": "1"}, {"version": "1m"}]
)
def test_a_wrap_does_not_open_in_another_context(context: dict[str, str]) -> None:
    kek = generate_key()
    with pytest.raises(AuthenticationError):
        unwrap_key(kek, wrap_key(kek, b"k" * 32, CONTEXT), context)


def test_the_order_of_the_context_does_not_matter() -> None:
    kek = generate_key()
    wrapped = wrap_key(kek, b"k" * 32, {"a": "1", "b": "2"})
    assert unwrap_key(kek, wrapped, {"b": "2", "a": "1"}) == b"k" * 32


def test_the_same_key_never_wraps_to_the_same_bytes() -> None:
    kek = generate_key()
    assert wrap_key(kek, b"k" * 32, CONTEXT) != wrap_key(kek, b"k" * 32, CONTEXT)


def test_a_key_file_is_made_private_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "root.key"
    FileKeyProvider(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size == 32
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644])
def test_a_key_file_that_others_may_touch_is_refused_and_not_changed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "root.key"
    FileKeyProvider(path)
    before = path.read_bytes()
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        FileKeyProvider(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "root.key"
    path.write_bytes(b"k" * size)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="32 bytes"):
        FileKeyProvider(path)
    assert path.stat().st_size == size


def test_a_linked_key_file_is_refused_even_if_it_points_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError):
        FileKeyProvider(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_or_fifo_is_not_a_key_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(KeyFileError, match="regular file"):
            FileKeyProvider(path)


def _wrap_in_process(path: Path) -> bytes:
    return FileKeyProvider(path).wrap(b"k" * 32, CONTEXT)


def test_processes_that_start_together_end_with_one_key(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        wraps = pool.map(_wrap_in_process, [path] * 16)
    provider = FileKeyProvider(path)
    assert all(provider.unwrap(wrapped, CONTEXT) == b"k" * 32 for wrapped in wraps)


def test_a_kek_of_another_length_is_refused() -> None:
    for kek in (b"", b"k" * 16, b"k" * 33):
        with pytest.raises(FormatError, match="kek"):
            wrap_key(kek, b"k" * 32, CONTEXT)
        with pytest.raises(FormatError, match="kek"):
            unwrap_key(kek, b"w" * 61, CONTEXT)
