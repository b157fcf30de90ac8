"""Sealed adapters: lease → ciphertext → plaintext in memory → the kernel pool. Plaintext never touches a disk."""

from __future__ import annotations

import logging
import threading

from lora_kernels import AdapterTensors
from sealed_weights import BaseSpec, MemoryNotLocked, OpenedPackage, PackageOpening, SealError, over_chunks
from serving.adapter_stats import LevelSeconds
from serving.adapters.gate import Pause, go_on
from serving.adapters.peft import PeftReader
from serving.errors import AdapterRevoked, AdapterUnavailable
from serving.platform.errors import LeaseRefused, PlatformError
from serving.platform.link import HeldKey, PlatformLink
from serving.platform.packages import PackageStore

log = logging.getLogger(__name__)

MAX_PLAINTEXT = 2 << 30  # bytes; rank 256 on every module of a 7B model is about 1.3 GB in bfloat16


class SealedAdapterSource:
    """A `serving.adapters.source.AdapterSource` over the platform's vault, with one lease per load."""

    leased = True

    def __init__(self, link: PlatformLink, packages: PackageStore, base: BaseSpec, *, must_lock: bool = False) -> None:
        """Make a source of adapters for `base` only; with `must_lock`, of none whose plaintext could reach swap."""
        self._must_lock = must_lock
        self.seconds = LevelSeconds()
        self._link, self._packages, self._base = link, packages, base
        self._reader = PeftReader(base)
        self._opened: dict[str, OpenedPackage] = {}
        self._candidates: dict[str, HeldKey] = {}
        self._lock = threading.Lock()

    def offer_candidate(self, key: HeldKey) -> None:
        """Let `load` use this key, lent for verification, instead of asking for one. The caller keeps and wipes it."""
        with self._lock:
            self._candidates[key.digest] = key

    def withdraw_candidate(self, digest: str) -> None:
        """Undo `offer_candidate`."""
        with self._lock:
            self._candidates.pop(digest, None)

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        """Lease, fetch, decrypt and check; the tensors are views of the decrypted memory, until `copied`.

        Raises AdapterRevoked when the platform withdrew it, AdapterUnavailable when it or its lease cannot be had.
        """
        with self._lock:
            candidate = self._candidates.get(digest)
        try:
            with self.seconds.measured("lease"):
                key = candidate or self._link.request_key(digest, "serve")
        except LeaseRefused as error:
            if error.code == "adapter_revoked":
                self._link.leases.revoke([digest])
                raise AdapterRevoked("this model was withdrawn") from None
            raise AdapterUnavailable(f"no lease on adapter {digest[:12]}: {error}") from None
        except PlatformError as error:
            raise AdapterUnavailable(f"no lease on adapter {digest[:12]}: {error}") from None
        try:
            return self._open(key, pause)
        except PlatformError as error:
            raise AdapterUnavailable(f"adapter {digest[:12]} cannot be fetched: {error}") from None
        except OSError as error:
            raise AdapterUnavailable(f"adapter {digest[:12]} cannot be stored: {error.strerror}") from None
        except MemoryNotLocked as error:
            raise AdapterUnavailable(f"adapter {digest[:12]} cannot be opened: {error}") from None
        except SealError as error:
            self._packages.discard(digest)
            raise AdapterUnavailable(f"adapter {digest[:12]} was refused: {error}") from None
        finally:
            if candidate is None:
                key.wipe()

    def _open(self, key: HeldKey, pause: Pause) -> AdapterTensors:
        with self.seconds.measured("fetch"):
            path = self._packages.fetch(key.digest, key.package_size)
        with (
            self.seconds.measured("decrypt"),
            PackageOpening(
                path,
                dek=key.dek,
                creator_public_key=key.creator_public_key,
                expected_digest=key.digest,
                max_plaintext=MAX_PLAINTEXT,
                must_lock=self._must_lock,
            ) as opening,
        ):

            def decrypt(index: int) -> None:
                pause()
                opening.decrypt(index)

            over_chunks(decrypt, opening.header)
            opened = opening.finish()
        try:
            with self.seconds.measured("check"):
                check_identity(opened, key, self._base)
                tensors = self._reader.read(bytes(opened.config), opened.tensors, pause)
        except BaseException:
            opened.wipe()
            raise
        with self._lock:
            self._opened[key.digest] = opened
        return tensors

    def copied(self, digest: str) -> None:
        """Wipe the decrypted memory, which is no longer needed."""
        with self._lock:
            opened = self._opened.pop(digest, None)
        if opened is not None:
            opened.wipe()

    def release(self, digest: str) -> None:
        """Wipe the remaining memory and return the lease: the adapter is no longer resident."""
        self.copied(digest)
        self._link.leases.give_back(digest)

    def locked_bytes(self) -> int:
        """Return the plaintext bytes that the kernel locked under RLIMIT_MEMLOCK; the rest could reach swap."""
        with self._lock:
            return sum(len(opened.tensors) for opened in self._opened.values() if opened.locked)


def check_identity(opened: OpenedPackage, key: HeldKey, base: BaseSpec) -> None:
    """Raise `SealError` unless the package is the creator's, model and version that the vault names, for this base."""
    header, identity = opened.header, key.identity
    pairs = (
        ("creator", header.creator_id, identity.creator_id),
        ("model", header.model_id, identity.model_id),
        ("version", header.version, identity.version),
        ("base model", header.base_fingerprint, base.fingerprint),
    )
    for what, found, expected in pairs:
        if found != expected:
            raise SealError(f"package {what}: is not the one the vault names")
