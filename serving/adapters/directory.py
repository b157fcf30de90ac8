"""Plain PEFT folders on disk: `folder/NAME/adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from pathlib import Path

from lora_kernels import AdapterTensors
from sealed_weights import BaseSpec, SealError, read_contract
from sealed_weights.payload import CONTRACT_NAME
from serving.adapter_stats import LevelSeconds
from serving.adapters.contracts import ContractShelf, HeldContract
from serving.adapters.gate import Pause, go_on
from serving.adapters.names import ADAPTER_NAME, parse_model_name
from serving.adapters.peft import PeftReader
from serving.core import AdapterRef
from serving.errors import AdapterUnavailable, ConfigError
from serving.memory import mapped

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
_MAX_CONFIG, _MAX_TENSORS = 1 << 20, 8 << 30
_PIECE = 2 << 20


class DirectoryAdapterSource:
    """Serves each sub-folder under its name. The digest covers the files' stamps (times, size, inode), so an
    overwritten adapter is a new one.

    The digest does not cover the content: the first request for an adapter would wait until all of it was hashed, and
    these digests are never compared with another replica's. Folders that appear later are found. Thread-safe.
    """

    leased = False

    def __init__(self, folder: Path | None, base: BaseSpec) -> None:
        self.seconds = LevelSeconds()
        self.contracts = ContractShelf()
        self._folder, self._reader = folder, PeftReader(base)
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}

    def names(self) -> list[str]:
        """Return the names of the adapter folders there are now, sorted."""
        if self._folder is None:
            return []
        return sorted(
            p.name for p in self._folder.iterdir() if ADAPTER_NAME.fullmatch(p.name) and (p / CONFIG_FILE).is_file()
        )

    def check_names(self, reserved: str) -> None:
        """Raise ConfigError if an adapter folder has a name by which it could not be called, or the `reserved` one."""
        if self._folder is None:
            return
        found = sorted(p.name for p in self._folder.iterdir() if p.name[0] != "." and (p / CONFIG_FILE).is_file())
        if reserved in found:
            raise ConfigError(
                f"{self._folder / reserved}: {reserved!r} is the name of the bare base; rename the folder"
            )
        if wrong := [name for name in found if not ADAPTER_NAME.fullmatch(name)]:
            raise ConfigError(
                f"{self._folder / wrong[0]}: an adapter's name has up to 128 letters, digits, '.', '_' and '-', "
                "the first a letter or digit; rename the folder"
            )

    def resolve(self, name: str) -> str | None:
        """Return the digest of the adapter called `name`, or None. Reads the disk: call it off the event loop."""
        if self._folder is None or not ADAPTER_NAME.fullmatch(name):
            return None
        path = self._folder / name
        try:
            digest = _digest(path)
        except OSError:
            return None
        with self._lock:
            self._paths[digest] = path
        return digest

    def resolve_model(self, name: str, reserved: str = "") -> AdapterRef | None:
        """Return the adapter or the blend (`a:0.7+b:0.3`) called `name`; None if a part does not exist, or has the
        `reserved` name, which a folder may have got after the start.

        Reads the disk like `resolve`. Raises ValueError where `name` is neither (`parse_model_name`,
        `AdapterRef.blend`).
        """
        parts = []
        for adapter, weight in parse_model_name(name):
            digest = None if adapter == reserved else self.resolve(adapter)
            if digest is None:
                return None
            parts.append((digest, weight))
        return AdapterRef.blend(parts)

    def contract(self, digest: str) -> HeldContract | None:
        """Return the contract in the adapter's folder, as `ContractSource.contract` does."""
        known, held = self.contracts.find(digest)
        if known:
            return held
        with self._lock:
            path = self._paths.get(digest)
        if path is None:
            raise AdapterUnavailable(f"no adapter {digest[:12]}")
        try:
            return self.contracts.put(digest, read_contract(path))
        except SealError as error:
            raise AdapterUnavailable(f"adapter {path.name} refused: {error}") from error

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        """Load as `AdapterSource.load` does.

        Raises AdapterUnavailable when the files are gone, have changed, or are refused by the strict intake.
        """
        with self._lock:
            path = self._paths.get(digest)
        if path is None:
            raise AdapterUnavailable(f"no adapter {digest[:12]}")
        try:
            with self.seconds.measured("read"):
                config = _read(path / CONFIG_FILE, _MAX_CONFIG, go_on)
                data = _read(path / TENSORS_FILE, _MAX_TENSORS, pause)
                unchanged = _digest(path) == digest  # asked after reading
        except OSError as error:
            raise AdapterUnavailable(f"adapter {path.name}: {error.strerror}") from error
        if not unchanged:
            raise AdapterUnavailable(f"adapter {path.name} changed while it was read")
        try:
            with self.seconds.measured("check"):
                return self._reader.read(bytes(config), data, pause)
        except SealError as error:
            raise AdapterUnavailable(f"adapter {path.name} refused: {error}") from error

    def copied(self, digest: str) -> None:
        """Do nothing: plain files need no wiping."""

    def release(self, digest: str) -> None:
        """Do nothing: plain files are not leased."""

    def locked_bytes(self) -> int:
        """Return 0: plain files are not secret and not locked."""
        return 0


def _digest(path: Path) -> str:
    """Hash the files' stamps. Every write or replacement changes it: a change time (ctime) cannot be set back."""
    stats = [(path / file).stat() for file in (CONFIG_FILE, TENSORS_FILE)]
    with contextlib.suppress(FileNotFoundError):
        stats.append((path / CONTRACT_NAME).stat())
    stamp = [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats]
    return hashlib.sha256(f"intarsia/peft-folder/v2{stamp}".encode()).hexdigest()


def _read(path: Path, limit: int, pause: Pause) -> memoryview:
    size = path.stat().st_size
    if size > limit:
        raise AdapterUnavailable(f"{path.name} is larger than {limit} bytes")
    # The C library would keep the memory of a 20 MB bytearray for good, in each worker thread.
    view = memoryview(mapped(size))[:size]
    with path.open("rb", buffering=0) as file:
        got = 0
        while got < size and (count := file.readinto(view[got : got + _PIECE])):
            got += count
            pause()
    return view
