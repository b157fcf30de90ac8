"""Which blocks stay below the pool, where, and in which state; with host memory in the middle, as beside a GPU."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from serving.block_copies import Source
from serving.core import LatencyClass
from serving.kv.content import Content, of_adapter
from serving.kv.host import HostStore
from serving.kv.level import State, Worth
from serving.kv.paged import PagedKV
from serving.kv.pool import BlockPool
from serving.kv.spill import DiskStore
from serving.kv.storage import BlockedKV
from serving.kv.tiers import Tiers

SHAPE = SimpleNamespace(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16)
SIZE = 16
CPU = torch.device("cpu")


def allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


class Replica:
    """A pool, KV in plain torch, host memory for two blocks and a disk for `disk`."""

    def __init__(self, folder: Path, disk: int) -> None:
        self.now = 0.0
        self.pool = BlockPool(4, SIZE)
        self.kv = PagedKV(SHAPE, 4, SIZE, torch.float32, CPU)
        size = PagedKV.bytes_per_block(SHAPE, SIZE, torch.float32)
        self.host = HostStore(2, size, allocate)
        self.disk = DiskStore(folder, disk * (size + 4096), size, allocate)
        self.tiers = Tiers(self.pool, [self.host, self.disk], self.kv)
        self.pool.on_reclaim = lambda block, content: self.tiers.spill(block, content, self.worth, self.now)
        self.worth = Worth(1.0)

    def compute(self, name: str, digest: str = "a") -> Content:
        """Compute and publish one block, whose numbers depend on its name."""
        what = Content(name.encode(), digest, "s", latency_class=LatencyClass.BATCH)
        (block,) = self.pool.allocate(1)
        self.kv.data[:, :, block] = self.numbers(name)
        self.pool.publish(block, what)
        self.pool.release([block])
        self.settle()
        return what

    def numbers(self, name: str) -> torch.Tensor:
        return torch.randn(self.kv.data[:, :, 0].shape, generator=torch.Generator().manual_seed(sum(name.encode())))

    def settle(self) -> None:
        for _ in range(1000):
            self.tiers.poll(self.now)
            if all(copy.state is State.SPILLED for level in self.tiers.levels for copy in level.copies.values()):
                self.tiers.check_integrity()
                return
            time.sleep(0.002)
        raise AssertionError("copies do not end")

    def where(self) -> tuple[set[str], set[str]]:
        host, disk = ({key.decode() for key in level.copies} for level in self.tiers.levels)
        return host, disk


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    one = Replica(tmp_path, 3)
    yield one
    one.tiers.close()


def test_what_host_memory_evicts_goes_to_the_disk_and_comes_back_from_either(replica: Replica) -> None:
    for name in "123456":
        replica.compute(name)
        replica.now += 1
        replica.tiers.use([name.encode()], replica.now)
        replica.worth = Worth(replica.worth.seconds + 1)  # the later, the dearer: each makes room
    assert replica.where() == ({"2", "3"}, {"1"})
    for name in "13":
        assert replica.tiers.state(name.encode()) is State.SPILLED
        assert replica.tiers.restore(name.encode())
        assert replica.tiers.state(name.encode()) is State.RESTORING
        replica.settle()
        block = replica.pool.block_of(name.encode())
        assert block is not None and torch.equal(replica.kv.data[:, :, block], replica.numbers(name))
    counts = replica.tiers.counts()
    assert counts["host"].restored_blocks == counts["disk"].restored_blocks == 1
    assert replica.pool.recomputed == 0
    replica.pool.check_integrity()


def test_a_copy_stays_so_that_a_block_leaves_the_pool_twice_for_one_write(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = list[bytes](), replica.host.save

    def recording(slot: int, content: Content, source: Source) -> bool:
        saved.append(content.key)
        return save(slot, content, source)

    monkeypatch.setattr(replica.host, "save", recording)
    for name in "1234":
        replica.compute(name)
    assert saved == [b"1"]
    replica.tiers.restore(b"1")  # "2" leaves for it
    replica.settle()
    assert replica.pool.block_of(b"1") is not None and saved == [b"1", b"2"]
    replica.pool.release(replica.pool.allocate(3))
    replica.settle()
    assert replica.pool.block_of(b"1") is None and saved.count(b"1") == 1


def test_a_block_that_is_worth_less_than_all_there_is_not_kept(replica: Replica) -> None:
    replica.worth = Worth(10.0)
    for name in "12345":
        replica.compute(name)
    assert replica.where() == ({"1", "2"}, set())
    replica.worth = Worth(1.0)
    replica.compute("6")
    assert replica.where() == ({"1", "2"}, set()) and replica.tiers.counts()["host"].spills_refused == 1
    replica.worth = Worth(1.0, always=True)  # what a preempted sequence held
    replica.compute("7")
    assert "4" in replica.where()[0]


def test_forgetting_an_adapter_leaves_nothing_of_it_on_any_level(replica: Replica) -> None:
    for name in "123456":
        replica.compute(name, "b" if name in "13" else "a")
        replica.worth = Worth(replica.worth.seconds + 1)
    assert replica.where() == ({"2", "3"}, {"1"})
    frame = bytes(replica.host._frames.view(replica.tiers.levels[0].copies[b"3"].slot))
    assert any(frame)
    replica.tiers.restore(b"3")  # on its way to the pool
    replica.tiers.forget(of_adapter("b"))
    replica.settle()
    assert replica.where() == ({"2"}, set()) and replica.tiers.state(b"1") is None
    assert replica.pool.block_of(b"3") is None
    assert bytes(16) * 4 in bytes(replica.host._frames._memory) and frame not in bytes(replica.host._frames._memory)
    assert not len(replica.disk.keys)


def test_a_block_is_kept_anew_while_the_copy_that_was_forgotten_still_ends(replica: Replica) -> None:
    first = replica.compute("1")
    for name in "234":
        replica.compute(name)
    assert replica.tiers.restore(b"1")
    replica.tiers.forget(of_adapter("a"))
    replica.tiers.spill(1, first, Worth(1.0), replica.now)
    assert replica.tiers.state(b"1") is State.SPILLING
    replica.settle()
    assert replica.where()[0] == {"1"} and replica.pool.block_of(b"1") is None


def test_a_restored_block_is_dropped_where_the_pool_has_no_room(replica: Replica) -> None:
    replica.compute("1")
    held = replica.pool.allocate(3)
    replica.settle()
    assert replica.tiers.restore(b"1")
    replica.settle()
    assert replica.pool.block_of(b"1") is None and replica.tiers.state(b"1") is State.SPILLED
    replica.pool.release(held)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(BlockedKV, torch.bfloat16), (BlockedKV, torch.int8), (PagedKV, torch.bfloat16), (PagedKV, torch.float8_e4m3fn)],
)
def test_a_block_is_copied_out_and_in_whole_and_no_other_changes(
    kind: type[BlockedKV] | type[PagedKV], dtype: torch.dtype
) -> None:
    kv = BlockedKV(SHAPE, 4, SIZE, dtype) if kind is BlockedKV else PagedKV(SHAPE, 4, SIZE, dtype, CPU)
    raw = kv.data.view(torch.uint8)
    raw.copy_(torch.frombuffer(bytearray(random.Random(1).randbytes(raw.numel())), dtype=torch.uint8).view(raw.shape))
    if isinstance(kv, PagedKV) and kv.scales is not None:
        kv.scales.copy_(torch.rand(kv.scales.shape))
    memory = [memoryview(bytearray(kind.bytes_per_block(SHAPE, SIZE, dtype))) for _ in range(4)]
    for block, out in enumerate(memory):
        assert kv.save(block, out) is None
    assert len({bytes(one) for one in memory}) == 4
    kv.restore(2, memory[1])
    expected = [memory[0], memory[1], memory[1], memory[3]]
    for block, before in enumerate(expected):
        now = memoryview(bytearray(len(before)))
        kv.save(block, now)
        assert now == before
