"""Blocks on a disk: ciphertext under keys that can be forgotten, in a file that nobody else finds."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.kv.block_keys import BlockKeys, KeyForgotten
from serving.kv.content import Content, of_adapter, of_scope
from serving.kv.spill import DiskStore
from serving.kv.stores import Finished

BLOCK = 9_000


def content(name: str, digest: str | None = "a", scope: str | None = "s") -> Content:
    return Content(name.encode().ljust(32), digest, scope)


def plain(name: str) -> bytes:
    return random.Random(name).randbytes(BLOCK)


def allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskStore]:
    store = DiskStore(tmp_path, 1 << 20, BLOCK, allocate)
    yield store
    store.close()


def save(store: DiskStore, slot: int, what: Content) -> None:
    def source(out: memoryview) -> None:
        out[:] = plain(what.key.decode().strip())

    assert store.save(slot, what, source)


def ended(store: DiskStore, count: int = 1) -> list[Finished]:
    out: list[Finished] = []
    for _ in range(2000):
        out += store.poll()
        if len(out) >= count:
            return out
        time.sleep(0.002)
    raise AssertionError(f"{len(out)} of {count} copies ended")


def load(store: DiskStore, slot: int, what: Content) -> Finished:
    store.load(slot, what)
    (done,) = ended(store)
    return done


def file_bytes(store: DiskStore) -> bytes:
    with open(f"/proc/self/fd/{store.file.descriptor}", "rb") as file:
        return file.read()


def overwrite(store: DiskStore, slot: int, data: bytes) -> None:
    with open(f"/proc/self/fd/{store.file.descriptor}", "r+b") as file:
        file.seek(slot * store.slot_bytes)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def test_a_block_comes_back_as_it_was_and_lies_there_as_noise(disk: DiskStore, tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    for slot, name in enumerate(names):
        save(disk, slot, content(name))
    assert all(done.ok and done.data is None for done in ended(disk, 3))
    written = file_bytes(disk)
    assert len(written) >= 3 * BLOCK and list(tmp_path.iterdir()) == []
    for slot, name in enumerate(names):
        assert not any(plain(name)[at : at + 16] in written for at in range(0, BLOCK - 16, 97))
        done = load(disk, slot, content(name))
        assert done.ok and done.data is not None and bytes(done.data) == plain(name)
        disk.release(slot)
    assert disk.keys.locked and len(disk.keys) == 1


@pytest.mark.parametrize("change", ["a bit", "another block", "the end"])
def test_a_block_that_was_changed_on_the_disk_does_not_open(disk: DiskStore, change: str) -> None:
    save(disk, 0, content("one"))
    save(disk, 1, content("two"))
    ended(disk, 2)
    written = file_bytes(disk)
    if change == "a bit":
        overwrite(disk, 0, bytes([written[0] ^ 1]))
    elif change == "another block":
        overwrite(disk, 0, written[disk.slot_bytes : 2 * disk.slot_bytes])
    else:
        os.ftruncate(disk.file.descriptor, 0)
    done = load(disk, 0, content("one"))
    assert not done.ok and done.data is None
    assert disk.takes_loads


def test_a_block_opens_for_its_own_key_alone(disk: DiskStore) -> None:
    save(disk, 0, content("one"))
    ended(disk)
    assert not load(disk, 0, content("two")).ok
    assert load(disk, 0, content("one")).ok


def test_what_an_adapter_wrote_opens_no_more_once_it_is_forgotten(disk: DiskStore) -> None:
    for slot, what in enumerate((content("one", "a", "s"), content("two", "a", "t"), content("other", "b", "s"))):
        save(disk, slot, what)
    ended(disk, 3)
    assert len(disk.keys) == 3
    disk.forget(of_adapter("a"))
    assert len(disk.keys) == 1
    assert not load(disk, 0, content("one", "a", "s")).ok and not load(disk, 1, content("two", "a", "t")).ok
    assert load(disk, 2, content("other", "b", "s")).ok
    # A new lease gets a new key, and the old blocks stay noise.
    save(disk, 3, content("new", "a", "s"))
    ended(disk)
    assert not load(disk, 0, content("one", "a", "s")).ok


def test_what_a_scope_wrote_opens_no_more_once_it_is_forgotten(disk: DiskStore) -> None:
    blocks = (content("one", "a", "s"), content("two", "b", "s"), content("other", "a", "t"))
    for slot, what in enumerate(blocks):
        save(disk, slot, what)
    ended(disk, 3)
    disk.forget(of_scope("s"))
    assert [load(disk, slot, what).ok for slot, what in enumerate(blocks)] == [False, False, True]


def test_a_block_on_its_way_when_its_adapter_is_forgotten_is_not_written_in_the_clear(
    disk: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, taken, write = threading.Event(), threading.Semaphore(0), disk.file.write

    def slow(data: memoryview, offset: int) -> None:
        taken.release()
        gate.wait()
        write(data, offset)

    monkeypatch.setattr(disk.file, "write", slow)
    for slot in range(4):  # two with the workers, two in line
        save(disk, slot, content(f"block {slot}"))
    assert taken.acquire(timeout=60) and taken.acquire(timeout=60)
    disk.forget(of_adapter("a"))
    gate.set()
    done = {one.slot: one.ok for one in ended(disk, 4)}
    assert not done[2] and not done[3]
    assert not load(disk, 0, content("block 0")).ok
    for frame in range(disk._saving.count):
        assert not any(disk._saving.view(frame))


def test_loads_go_before_saves_and_a_busy_disk_takes_none(disk: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(disk, 0, content("read me"))
    ended(disk)
    gate, taken, order, write = threading.Event(), threading.Semaphore(0), list[str](), disk.file.write

    def slow(data: memoryview, offset: int) -> None:
        taken.release()
        gate.wait()
        order.append("write")
        write(data, offset)

    read = disk.file.read
    monkeypatch.setattr(disk.file, "write", slow)
    monkeypatch.setattr(disk.file, "read", lambda out, offset: (order.append("read"), read(out, offset))[1])
    count = 0
    while disk.takes_saves:
        count += 1
        save(disk, count, content(f"block {count}"))
    assert taken.acquire(timeout=60) and taken.acquire(timeout=60)
    disk.load(0, content("read me"))
    gate.set()
    assert len(ended(disk, count + 1)) == count + 1
    assert "read" in order[:3] and disk.takes_saves


def test_a_full_disk_loses_blocks_and_says_so_once(
    disk: DiskStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(data: memoryview, offset: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.file, "write", full)
    for slot in range(2):
        save(disk, slot, content(f"block {slot}"))
    assert [one.ok for one in ended(disk, 2)] == [False, False]
    assert [record.message.count("could not be written") for record in caplog.records] == [1]
    disk.drop(0)
    assert disk.takes_saves and len(disk.keys) == 1


def test_a_file_system_without_direct_input_and_output_serves_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serving.kv.spill_file._DIRECT", 1 << 30)  # a flag that no file system knows
    monkeypatch.setattr("serving.kv.spill_file._UNNAMED", 0)
    monkeypatch.setattr("serving.kv.spill_file._open_unnamed", _refusing(1 << 30))
    with caplog.at_level("INFO"):
        store = DiskStore(tmp_path, 1 << 20, BLOCK, allocate)
    assert not store.file.direct and "page cache" in caplog.text
    assert list(tmp_path.iterdir()) == []
    save(store, 0, content("one"))
    ended(store)
    assert load(store, 0, content("one")).ok
    store.close()


def _refusing(flag: int):  # type: ignore[no-untyped-def]
    from serving.kv import spill_file

    def open_unnamed(folder: Path, flags: int) -> int:
        if flags & flag:
            raise OSError(22, "Invalid argument")
        return real(folder, flags)

    real = spill_file._open_unnamed
    return open_unnamed


def test_settings_that_cannot_work_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder, size, text in (
        (tmp_path / "missing", 1 << 20, "not a folder"),
        (file, 1 << 20, "not a folder"),
        (tmp_path, 1 << 60, "GB are free there"),
        (tmp_path, 1, "one block takes"),
    ):
        with pytest.raises(ConfigError, match=text):
            DiskStore(folder, size, BLOCK, allocate)
    assert list(tmp_path.iterdir()) == [file]


def test_a_key_goes_with_the_last_block_and_its_place_is_used_again() -> None:
    keys = BlockKeys(most=2)
    first, again, second = keys.take(("s", "a")), keys.take(("s", "a")), keys.take(("t", "a"))
    assert first is again and first is not None and second is not None
    assert keys.take(("u", "a")) is None, "there is room for two owners"
    keys.give(("s", "a"), first)
    keys.cipher(first)
    keys.give(("s", "a"), first)
    with pytest.raises(KeyForgotten):
        keys.cipher(first)
    third = keys.take(("u", "a"))
    assert third is not None
    sealed = keys.cipher(third).encrypt(bytes(12), b"x", None)
    keys.close()
    with pytest.raises(KeyForgotten):
        keys.cipher(third)
    assert len(sealed) == 17
