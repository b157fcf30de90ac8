"""Plain PEFT folders on disk: `folder/NAME/adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from lora_kernels import AdapterTensors
from sealed_weights import BaseSpec, SealError
from serving.adapters.peft import adapter_tensors
from serving.core import AdapterUnavailable

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
_MAX_CONFIG, _MAX_TENSORS = 1 << 20, 8 << 30
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Known:
    stamp: tuple[int, ...]
    digest: str


class DirectoryAdapterSource:
    """Serves each sub-folder under its name. The digest is over both files' content, so an overwritten adapter is a
    new one.

    Folders that appear later are found; nothing is cached but digests. Thread-safe.
    """

    def __init__(self, folder: Path | None, base: BaseSpec) -> None:
        self._folder, self._base = folder, base
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._paths: dict[str, Path] = {}

    def names(self) -> list[str]:
        """Adapter folders there are now, sorted."""
        if self._folder is None:
            return []
        return sorted(p.name for p in self._folder.iterdir() if _NAME.fullmatch(p.name) and (p / CONFIG_FILE).is_file())

    def resolve(self, name: str) -> str | None:
        """Digest of the adapter called `name`, or None. Reads the files when they changed: call it off the event
        loop."""
        if self._folder is None or not _NAME.fullmatch(name):
            return None
        path = self._folder / name
        try:
            stats = [(path / file).stat() for file in (CONFIG_FILE, TENSORS_FILE)]
            stamp = tuple(n for stat in stats for n in (stat.st_mtime_ns, stat.st_size, stat.st_ino))
            known = self._known.get(name)
            if known is None or known.stamp != stamp:
                known = _Known(stamp, _digest(path))
        except OSError:
            return None
        with self._lock:
            self._known[name] = known
            self._paths[known.digest] = path
        return known.digest

    def load(self, digest: str) -> AdapterTensors:
        """Raises AdapterUnavailable when the files are gone, changed since, or refused by the strict intake."""
        with self._lock:
            path = self._paths.get(digest)
        if path is None:
            raise AdapterUnavailable(f"no adapter {digest[:12]}")
        try:
            config, data = _read(path / CONFIG_FILE, _MAX_CONFIG), _read(path / TENSORS_FILE, _MAX_TENSORS)
        except OSError as error:
            raise AdapterUnavailable(f"adapter {path.name}: {error.strerror}") from error
        if _digest_of(config, data) != digest:
            raise AdapterUnavailable(f"adapter {path.name} changed while it was read")
        try:
            return adapter_tensors(bytes(config), data, self._base)
        except SealError as error:
            raise AdapterUnavailable(f"adapter {path.name} refused: {error}") from error

    def copied(self, digest: str) -> None:
        """Plain files: nothing to wipe."""

    def release(self, digest: str) -> None:
        """Plain files: nothing to give back."""


def _read(path: Path, limit: int) -> bytearray:
    size = path.stat().st_size
    if size > limit:
        raise AdapterUnavailable(f"{path.name} is larger than {limit} bytes")
    data = bytearray(size)
    with path.open("rb", buffering=0) as file:
        got = 0
        while got < size and (count := file.readinto(memoryview(data)[got:])):
            got += count
    return data


def _digest_of(config: bytearray, data: bytearray) -> str:
    parts = hashlib.sha256(config).digest() + hashlib.sha256(data).digest()
    return hashlib.sha256(b"intarsia/peft-folder/v1" + parts).hexdigest()


def _digest(path: Path) -> str:
    return _digest_of(_read(path / CONFIG_FILE, _MAX_CONFIG), _read(path / TENSORS_FILE, _MAX_TENSORS))
