"""A load on its way to a GPU: one pinned blob, copied layer by layer beside the kernels, an event after each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lora_kernels.errors import BackendError
from lora_kernels.loading.writing import SitePages
from lora_kernels.memory import runs
from lora_kernels.storage.site import SiteStorage

# The blob is wiped by copies of at most this many device zeros.
WIPE_BYTES = 4 << 20
# Every tensor in the blob begins at a multiple of this.
ALIGN = 256


@dataclass(frozen=True, eq=False)
class Arrival:
    """When each layer of a load is on the device."""

    events: tuple[torch.cuda.Event, ...]

    @property
    def complete(self) -> bool:
        """Whether every layer has arrived. Does not wait."""
        return self.events[-1].query()

    def wait(self, stream: torch.cuda.Stream, layer: int | None = None) -> None:
        """Make `stream`, not the host, wait for a layer, or for all. Raises BackendError under graph capture."""
        if torch.cuda.is_current_stream_capturing():
            raise BackendError("an adapter is still being copied: call pool.settle() before capturing a graph")
        stream.wait_event(self.events[-1 if layer is None else min(layer, len(self.events) - 1)])


class HostBlob:
    """Zeroed host memory for some sites' pages. `pages` are to be filled; `send` then takes them to the pool."""

    def __init__(self, storages: Mapping[str, SiteStorage], pages: int, *, pinned: bool) -> None:
        targets = [tensor for storage in storages.values() for tensor in storage.tensors()]
        shapes = [(len(target), pages, *target.shape[2:]) for target in targets]
        sizes = [target[:, :pages].numel() * target.itemsize for target in targets]
        self.memory = torch.zeros(sum(map(_aligned, sizes)), dtype=torch.uint8, pin_memory=pinned)
        blobs = []
        offset = 0
        for target, shape, size in zip(targets, shapes, sizes, strict=True):
            blobs.append(self.memory[offset : offset + size].view(target.dtype).view(shape))
            offset += _aligned(size)
        # (in the pool [layers, pool pages, ...], in the blob [layers, pages, ...])
        self._copies = list(zip(targets, blobs, strict=True))
        rest = iter(blobs)
        self.pages = {}
        for name, storage in storages.items():
            mine = [list(next(rest).unbind(1)) for _ in storage.tensors()]
            self.pages[name] = SitePages(
                mine[0], mine[1], mine[2] if len(mine) > 2 else [], storage.b_offsets, storage.page_size
            )

    def send(self, pages: Sequence[int], stream: torch.cuda.Stream, after: torch.cuda.Event) -> Arrival:
        """Queue the copies on `stream` behind `after` and return at once; the blob is wiped when the last has ended."""
        events = []
        stream.wait_event(after)
        with torch.cuda.stream(stream):
            for layer in range(max((len(target) for target, _ in self._copies), default=1)):
                for target, blob in self._copies:
                    if layer < len(target):
                        copy_pages(target[layer], blob[layer], pages)
                events.append(torch.cuda.Event())
                events[-1].record(stream)
            zeros = torch.zeros(min(WIPE_BYTES, len(self.memory)), dtype=torch.uint8, device=stream.device)
            for part in self.memory.split(WIPE_BYTES):
                part.copy_(zeros[: len(part)], non_blocking=True)
        return Arrival(tuple(events))


def copy_pages(target: torch.Tensor, blob: torch.Tensor, pages: Sequence[int]) -> None:
    """target[pages[i]] = blob[i], one copy for each run of adjacent pages."""
    position = 0
    for first, end in runs(pages):
        target[first:end].copy_(blob[position : position + end - first], non_blocking=True)
        position += end - first


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
