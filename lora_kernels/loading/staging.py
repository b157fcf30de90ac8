"""A load on its way to a GPU: through pinned memory, layer by layer beside the kernels, an event after each layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from lora_kernels.driver import Driver, Event, Stream
from lora_kernels.loading.ring import PinnedRing, Region
from lora_kernels.loading.writing import SitePages
from lora_kernels.memory import runs
from lora_kernels.storage.site import SiteStorage
from lora_kernels.storage.store import PageStore

# Pinned memory for all loads, unless a pool is given another size: three adapters of rank 16 on an 8B model.
STAGING_BYTES = 256 << 20
# The longest that a load waits for other loads to leave the pinned memory, in seconds.
ROOM_SECONDS = 30.0
# Memory is wiped by copies of at most this many device zeros: a step's answers may wait for one of them (20 µs).
WIPE_BYTES = 1 << 20
# Every tensor in a blob begins at a multiple of this.
ALIGN = 256


@dataclass(frozen=True, eq=False)
class Arrival:
    """When each layer of a load is on the device. Neither method may be called during a capture."""

    events: tuple[Event, ...]

    @property
    def complete(self) -> bool:
        """Whether every layer has arrived. Does not wait."""
        return self.events[-1].query()

    def wait(self, stream: Stream, layer: int | None = None) -> None:
        """Make `stream`, not the host, wait for a layer, or for all."""
        stream.wait_event(self.events[-1 if layer is None else min(layer, len(self.events) - 1)])

    def synchronize(self) -> None:
        """Make the calling thread wait for all layers."""
        self.events[-1].synchronize()


class HostBlob:
    """Host memory for some layers of some sites' pages. `pages` are to be filled; `copies` then take them to the pool.

    memory: zeroed uint8, as many as `HostBlob.bytes_for` says
    """

    def __init__(self, storages: Mapping[str, SiteStorage], pages: int, layers: range, memory: torch.Tensor) -> None:
        self.layers = layers
        self.pages: dict[str, SitePages] = {}
        # (in the pool [layers of this blob, pool pages, ...], here [layers of this blob, pages, ...])
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        offset = 0
        for name, storage in storages.items():
            mine = []
            for whole in storage.tensors():
                target = whole[layers.start : layers.stop]
                size = target[:, :pages].numel() * target.itemsize
                blob = memory[offset : offset + size].view(target.dtype).view(len(target), pages, *target.shape[2:])
                offset += _aligned(size)
                self.copies.append((target, blob))
                mine.append(list(blob.unbind(1)))
            if len(storage.a) > layers.start:
                scales = mine[2] if len(mine) > 2 else []
                self.pages[name] = SitePages(
                    mine[0], mine[1], scales, storage.b_offsets, storage.page_size, layers.start
                )

    @staticmethod
    def bytes_for(storages: Iterable[SiteStorage], pages: int, layers: range) -> int:
        """Return the bytes of a blob of these layers."""
        return sum(
            _aligned(len(range(len(tensor))[layers.start : layers.stop]) * pages * tensor[0, 0].nbytes)
            for storage in storages
            for tensor in storage.tensors()
        )


class Staging:
    """Pinned memory and a stream for the loads of one pool, whichever threads they run in.

    nbytes: size of the pinned memory; raised to what two layers of the largest adapter take, and lowered to what two of
        these adapters take
    """

    def __init__(self, driver: Driver, store: PageStore, nbytes: int) -> None:
        self.driver = driver
        self.stream = driver.new_stream()
        storages, pages = store.sites(), store.spec.max_pages
        layers = range(max(len(storage.a) for storage in storages))
        least = 2 * max(HostBlob.bytes_for(storages, pages, range(layer, layer + 1)) for layer in layers)
        most = 2 * HostBlob.bytes_for(storages, pages, layers)
        self.ring = PinnedRing(driver.pinned(max(least, min(nbytes, most))))
        self._zeros = torch.zeros(min(WIPE_BYTES, self.ring.nbytes), dtype=torch.uint8, device=store.device)

    def pieces(self, storages: Sequence[SiteStorage], pages: int) -> Iterator[range]:
        """Yield the layers that go together: at most half of the memory, so that one is filled as another is copied."""
        count = max((len(storage.a) for storage in storages), default=0)
        first = 0
        while first < count:
            end = first + 1
            while end < count and HostBlob.bytes_for(storages, pages, range(first, end + 1)) <= self.ring.nbytes // 2:
                end += 1
            yield range(first, end)
            first = end

    def take(self, storages: Sequence[SiteStorage], pages: int, layers: range) -> Region:
        """Return pinned memory for a blob of these layers. Raises StagingError when others hold it for too long."""
        return self.ring.take(HostBlob.bytes_for(storages, pages, layers), ROOM_SECONDS)

    def send(self, blob: HostBlob, region: Region, pages: Sequence[int], stream: Stream) -> list[Event]:
        """Queue the copies of a filled blob and return an event per layer; its memory is wiped behind them."""
        events = []
        with self.driver.using(stream):
            for layer in range(len(blob.layers)):
                for target, source in blob.copies:
                    if layer < len(target):
                        self._copy_pages(target[layer], source[layer], pages)
                events.append(self.driver.record())
            for part in region.memory.split(WIPE_BYTES):
                self.driver.copy(part, self._zeros[: len(part)])
            self.ring.give(region, after=self.driver.record())
        return events

    def refuse(self, region: Region) -> None:
        """Wipe and give back memory whose load was refused before anything of it was sent."""
        region.memory.zero_()
        self.ring.give(region)

    def _copy_pages(self, target: torch.Tensor, source: torch.Tensor, pages: Sequence[int]) -> None:
        """target[pages[i]] = source[i], one copy for each run of adjacent pages."""
        position = 0
        for first, end in runs(pages):
            self.driver.copy(target[first:end], source[position : position + end - first])
            position += end - first


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
