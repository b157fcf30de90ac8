"""Sealed adapters: lease → ciphertext → plaintext in memory → the kernel pool. Plaintext never touches a disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lora_kernels import AdapterTensors
from sealed_weights import (
    BaseSpec,
    MemoryNotLocked,
    OpenedPackage,
    PackageOpening,
    Reference,
    SealError,
    over_chunks,
    parse_contract,
    parse_reference,
)
from serving.adapter_stats import LevelSeconds
from serving.adapters.contracts import ContractShelf, HeldContract
from serving.adapters.gate import Pause, go_on
from serving.adapters.peft import PeftReader
from serving.errors import AdapterRevoked, AdapterUnavailable
from serving.platform.errors import LeaseRefused, PlatformError
from serving.platform.link import HeldKey, PlatformLink
from serving.platform.packages import PackageStore

log = logging.getLogger(__name__)

AHEAD_SECONDS = 60.0  # a package opened for its contract waits so long for the engine to ask for its weights
MAX_AHEAD = 4
MAX_PLAINTEXT = 2 << 30  # bytes; rank 256 on every module of a 7B model is about 1.3 GB in bfloat16


class SealedAdapterSource:
    """A `serving.adapters.source.AdapterSource` over the platform's vault, with one lease per load."""

    leased = True

    def __init__(self, link: PlatformLink, packages: PackageStore, base: BaseSpec, *, must_lock: bool = False) -> None:
        """Make a source of adapters for `base` only; with `must_lock`, of none whose plaintext could reach swap."""
        self._must_lock = must_lock
        self.seconds = LevelSeconds()
        self._link, self._packages = link, packages
        self._reader = PeftReader(base)
        self.contracts = ContractShelf()
        self._opened: dict[str, OpenedPackage] = {}
        self._ahead: dict[str, OpenedPackage] = {}
        self._turns: dict[str, tuple[threading.Lock, int]] = {}
        self._candidates: dict[str, HeldKey] = {}
        self._references: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def offer_candidate(self, key: HeldKey) -> None:
        """Let `load` use this key, lent for verification, instead of asking for one. The caller keeps and wipes it."""
        with self._lock:
            self._candidates[key.digest] = key

    def withdraw_candidate(self, digest: str) -> None:
        """Undo `offer_candidate`."""
        with self._lock:
            self._candidates.pop(digest, None)
            self._references.pop(digest, None)

    def reference(self, digest: str) -> Reference | None:
        """Return PEFT's answers in the package of a candidate that `contract` or `load` has opened, None without any.

        Nobody needs them once it is verified. Raises IntakeError.
        """
        with self._lock:
            sealed = self._references.get(digest)
        return None if sealed is None else parse_reference(sealed)

    def contract(self, digest: str) -> HeldContract | None:
        """Return the contract of an adapter, opening its package where it is not known; `load` then goes on from there.

        Raises what `load` raises.
        """
        with self._turn(digest):
            known, held = self.contracts.find(digest)
            if known:
                return held
            self._keep_ahead(self._unseal(digest, go_on))
            return self.contracts.find(digest)[1]

    def load(self, digest: str, pause: Pause = go_on) -> AdapterTensors:
        """Lease, fetch, decrypt and check; the tensors are views of the decrypted memory, until `copied`.

        Raises AdapterRevoked when the platform withdrew it, AdapterUnavailable when it or its lease cannot be had.
        """
        with self._turn(digest):
            opened = self._take_ahead(digest) or self._unseal(digest, pause)
        try:
            with self.seconds.measured("check"):
                tensors = self._reader.read(bytes(opened.config), opened.tensors, pause)
        except SealError as error:
            opened.wipe()
            self._packages.discard(digest)
            raise AdapterUnavailable(f"adapter {digest[:12]} was refused: {error}") from None
        except BaseException:
            opened.wipe()
            raise
        with self._lock:
            self._opened[digest] = opened
        return tensors

    def _unseal(self, digest: str, pause: Pause) -> OpenedPackage:
        """Lease, fetch and decrypt; the contract is on its shelf afterwards."""
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

    def _open(self, key: HeldKey, pause: Pause) -> OpenedPackage:
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
            check_identity(opened, key)
            sealed = opened.contract
            self.contracts.put(key.digest, None if sealed is None else parse_contract(sealed))
            with self._lock:
                if key.digest in self._candidates and opened.reference is not None:
                    self._references[key.digest] = opened.reference
        except BaseException:
            opened.wipe()
            raise
        return opened

    # -- packages opened for their contract, before the engine asks for their weights --------------------------------

    @contextmanager
    def _turn(self, digest: str) -> Iterator[None]:
        """Let one thread at a time open a package: the next one finds what it needs."""
        with self._lock:
            lock, users = self._turns.get(digest, (threading.Lock(), 0))
            self._turns[digest] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._turns.pop(digest)
                if users > 1:
                    self._turns[digest] = (lock, users - 1)

    def _keep_ahead(self, opened: OpenedPackage) -> None:
        with self._lock:
            self._ahead[opened.digest] = opened
            oldest = next(iter(self._ahead)) if len(self._ahead) > MAX_AHEAD else None
        if oldest is not None:
            self._let_go(oldest)
        # A request may be refused for its body after its contract was read: then no load comes.
        timer = threading.Timer(AHEAD_SECONDS, self._let_go, [opened.digest, opened])
        timer.daemon = True
        timer.start()

    def _take_ahead(self, digest: str) -> OpenedPackage | None:
        """Return the package that `contract` opened, if its lease still holds."""
        with self._lock:
            opened = self._ahead.pop(digest, None)
            candidate = digest in self._candidates
        if opened is None or candidate or self._link.leases.is_live(digest):
            return opened
        opened.wipe()
        return None

    def _let_go(self, digest: str, opened: OpenedPackage | None = None) -> None:
        """Wipe a package that no load asked for, and return its lease; `opened`: only if it is still that one."""
        with self._lock:
            kept = self._ahead.get(digest)
            if kept is None or (opened is not None and kept is not opened):
                return
            del self._ahead[digest]
        kept.wipe()
        self.contracts.drop(digest)
        self._link.leases.give_back(digest)

    def forget(self, digest: str) -> None:
        """Forget the contract and wipe what was opened for it: the lease is over. Safe from any thread."""
        self.contracts.drop(digest)
        with self._lock:
            opened = self._ahead.pop(digest, None)
        if opened is not None:
            opened.wipe()

    def copied(self, digest: str) -> None:
        """Wipe the decrypted memory, which is no longer needed."""
        with self._lock:
            opened = self._opened.pop(digest, None)
        if opened is not None:
            opened.wipe()

    def release(self, digest: str) -> None:
        """Wipe the remaining memory and return the lease: the adapter is no longer resident."""
        self.copied(digest)
        self.forget(digest)
        self._link.leases.give_back(digest)

    def locked_bytes(self) -> int:
        """Return the plaintext bytes that the kernel locked under RLIMIT_MEMLOCK; the rest could reach swap."""
        with self._lock:
            packages = (*self._opened.values(), *self._ahead.values())
            return sum(len(opened.tensors) for opened in packages if opened.locked)


def check_identity(opened: OpenedPackage, key: HeldKey) -> None:
    """Raise `SealError` unless the package is the creator's, model and version that the vault names, for its reference.

    The replica may serve another checkpoint of the line; that the adapter fits is checked when it is read.
    """
    header, identity = opened.header, key.identity
    pairs = (
        ("creator", header.creator_id, identity.creator_id),
        ("model", header.model_id, identity.model_id),
        ("version", header.version, identity.version),
        ("base model", header.base_fingerprint.hex(), identity.base),
    )
    for what, found, expected in pairs:
        if found != expected:
            raise SealError(f"package {what}: is not the one the vault names")
