"""Where a canary adapter's weights are: in every order and type in which a pool may lay them, in memory and on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from lora_kernels import AdapterPool
from serving.adapters.peft import PeftReader
from serving.models.llama import pool_spec
from serving.replica import Base

WINDOW = 48  # bytes of one needle
CHUNK = 16 << 20
# Values of a window that make it the canary's alone: no run of zeros, no pattern that other weights might have.
DISTINCT = 20


@dataclass(frozen=True)
class Canary:
    """needles: bytes that only this adapter has, by the encoding in which they would appear."""

    needles: Mapping[str, bytes]

    def of(self, kind: str) -> set[str]:
        """The names of the needles whose encoding begins with `kind`."""
        return {name for name in self.needles if name.startswith(kind)}

    def found_in(self, data: bytes | bytearray | memoryview) -> set[str]:
        """The names of the needles in `data`."""
        raw = bytes(data) if isinstance(data, memoryview) else data
        return {name for name, needle in self.needles.items() if needle in raw}


def canary_of(model: Path, adapter: Path) -> Canary:
    """Derive the needles of an adapter folder with the code that reads adapters and the code that lays pages."""
    base = Base.from_dir(model)
    stored = (adapter / "adapter_model.safetensors").read_bytes()
    tensors = PeftReader(base.spec).read((adapter / "adapter_config.json").read_bytes(), bytearray(stored))
    needles = {}
    pair = tensors[1, "gate_up", 0]
    for name, matrix in (("A", pair.a), ("B", pair.b)):
        needles[f"file, float32, {name}"] = _window(_bytes_of(matrix))
        needles[f"file, bfloat16, {name}"] = _window(_bytes_of(matrix.to(torch.bfloat16)))
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        pool = AdapterPool(pool_spec(base.config), 2, 1, dtype)
        pool.load(0, tensors)
        page = pool.slot_pages(0)[0]
        site = pool.site("gate_up")
        for name, pages in (("A", site.a), ("B", site.b)):
            needles[f"pool, {str(dtype).removeprefix('torch.')}, {name}"] = _window(_bytes_of(pages[1, page]))
    assert len(set(needles.values())) >= 8  # float32 keeps the file's order within a block; all others differ
    assert needles["file, bfloat16, A"] not in needles["pool, bfloat16, A"] * 2
    return Canary(needles)


def memory_of(pid: int) -> Iterator[bytes]:
    """Yield the writable memory of a process, in overlapping pieces. Raises PermissionError where that is refused."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if found is None:
                continue
            begin, end = (int(number, 16) for number in found.groups())
            for start in range(begin, end, CHUNK):
                try:
                    memory.seek(start)
                    yield memory.read(min(CHUNK + WINDOW, end - start))
                except OSError:  # unmapped meanwhile, or a device's
                    break


def files_under(folders: Iterable[Path], since: float) -> Iterator[Path]:
    """Yield the regular files below `folders` that were written at `since` (Unix time) or later."""
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if path.is_file() and not path.is_symlink() and path.stat().st_mtime >= since:
                    yield path
            except OSError:  # removed meanwhile
                continue


def _bytes_of(values: torch.Tensor) -> bytes:
    return values.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _window(data: bytes) -> bytes:
    """Return a stretch of `data`, from the start of a row on, that no other data has by chance."""
    for start in range(0, len(data) - WINDOW + 1, 64):
        window = data[start : start + WINDOW]
        if len(set(window)) >= DISTINCT and b"\0\0\0\0" not in window:
            return window
    raise AssertionError("no stretch is distinctive enough")
