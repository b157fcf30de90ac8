"""Open a sealed package: plaintext goes from the cipher straight into one wipeable buffer, and nowhere else."""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealed_weights import payload
from sealed_weights.errors import AuthenticationError, CommitmentError, FormatError, SealError
from sealed_weights.files import open_regular, read_exactly
from sealed_weights.header import (
    HEADER_SIZE,
    TAG_SIZE,
    ChunkKeys,
    PackageHeader,
    chunk_associated_data,
    derive_chunk_keys,
)
from sealed_weights.package import PackageHasher, read_footer, read_sized_header
from sealed_weights.secret_memory import SecretBuffer
from sealed_weights.signing import verify

# Below this a pool costs more than it saves: starting threads takes about 100 µs, 8 MiB about 2 ms.
PARALLEL_FROM = 8 << 20
MAX_THREADS = 8


class OpenedPackage:
    """The plaintext of a package, held in memory until `wipe` (or the end of the `with` block)."""

    def __init__(self, header: PackageHeader, digest: str, memory: SecretBuffer) -> None:
        """Take ownership of `memory`; raises `FormatError` if the payload is not well framed."""
        self.header = header
        self.digest = digest
        self._memory: SecretBuffer | None = memory
        self._config, self._tensors = payload.split(memory.view)

    @property
    def config(self) -> memoryview:
        """The bytes of `adapter_config.json`, in place. Raises `SealError` after `wipe`."""
        self._require_open()
        return self._config

    @property
    def tensors(self) -> memoryview:
        """The bytes of `adapter_model.safetensors`, in place, 64-byte aligned. Raises `SealError` after `wipe`."""
        self._require_open()
        return self._tensors

    @property
    def locked(self) -> bool:
        """Whether the plaintext is locked in RAM; if not, it may reach swap."""
        return self._memory is not None and self._memory.locked

    def wipe(self) -> None:
        """Zero the plaintext. Views and arrays over it that still exist read zeros. May be called again."""
        if self._memory is not None:
            self._config = self._tensors = memoryview(b"")
            self._memory.wipe()
            self._memory = None

    def _require_open(self) -> None:
        if self._memory is None:
            raise SealError("opened package: already wiped")

    def __enter__(self) -> OpenedPackage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()


def open_package(
    path: Path,
    *,
    dek: bytes | bytearray,
    creator_public_key: bytes | Ed25519PublicKey,
    expected_digest: str | None,
    max_plaintext: int,
    threads: int | None = None,
    pause: Callable[[], None] | None = None,
) -> OpenedPackage:
    """Decrypt and verify a package in one pass; nothing is returned unless everything holds.

    Order: size and header, key commitment (constant time, before any chunk), then every chunk is read once, hashed and
    decrypted, then signature and digest. One pass, because a file read twice could change in between. `expected_digest`
    pins the version against rollback; pass None only for a package just sealed here. `max_plaintext` (bytes) is checked
    before memory is taken. `threads` defaults to the processors at hand, one below 8 MiB.
    `pause` is called before each chunk, in the thread that decrypts it: it returns when that may go on.

    Raises `FormatError`, `CommitmentError`, `AuthenticationError` or `SignatureError`, the plaintext zeroed.
    """
    with open_regular(path) as (descriptor, size):
        header = read_sized_header(descriptor, size)
        if header.plaintext_length > max_plaintext:
            raise FormatError(f"header plaintext_length: must be at most {max_plaintext} bytes")
        keys = derive_chunk_keys(dek, header)
        if not hmac.compare_digest(keys.commitment, header.commitment):
            raise CommitmentError("header commitment: the key does not match this package, or its header was changed")
        memory = SecretBuffer(header.plaintext_length)
        try:
            # GCM leaves the plaintext in the destination even when the tag is wrong: every way out below wipes it.
            leaves = _decrypt_chunks(descriptor, header, keys, memory.view, threads or _default_threads(header), pause)
            digest = _verify_whole(descriptor, header, leaves, creator_public_key, expected_digest)
            return OpenedPackage(header, digest, memory)
        except BaseException:
            memory.wipe()
            raise


def _default_threads(header: PackageHeader) -> int:
    if header.plaintext_length < PARALLEL_FROM:
        return 1
    return min(len(os.sched_getaffinity(0)), MAX_THREADS, header.chunk_count)


def _decrypt_chunks(
    descriptor: int,
    header: PackageHeader,
    keys: ChunkKeys,
    destination: memoryview,
    threads: int,
    pause: Callable[[], None] | None,
) -> bytearray:
    """Decrypt all chunks into `destination` and return their SHA-256 leaves (32 bytes each, in order)."""
    leaves = bytearray(32 * header.chunk_count)
    failed = threading.Event()

    def work(first: int) -> None:
        # Read, SHA-256 and AES-GCM all release the GIL, so striding chunks over threads scales with cores.
        cipher = AESGCM(keys.key)
        scratch = bytearray(header.chunk_size + TAG_SIZE)
        for index in range(first, header.chunk_count, threads):
            if failed.is_set():
                return
            if pause is not None:
                pause()
            start = index * header.chunk_size
            plain = destination[start : start + header.chunk_size]
            stored = memoryview(scratch)[: len(plain) + TAG_SIZE]
            try:
                read_exactly(descriptor, stored, HEADER_SIZE + index * len(scratch))
                leaves[32 * index : 32 * index + 32] = hashlib.sha256(stored).digest()
                cipher.decrypt_into(keys.nonce(index), stored, chunk_associated_data(header, index), plain)
            except InvalidTag:
                failed.set()
                raise AuthenticationError(f"chunk {index}: changed, moved or from another package") from None
            except BaseException:
                failed.set()
                raise

    if threads == 1:
        work(0)
        return leaves
    with ThreadPoolExecutor(threads, thread_name_prefix="open-package") as pool:
        running = [pool.submit(work, first) for first in range(threads)]
    for future in running:
        future.result()
    return leaves


def _verify_whole(
    descriptor: int,
    header: PackageHeader,
    leaves: bytearray,
    creator_public_key: bytes | Ed25519PublicKey,
    expected_digest: str | None,
) -> str:
    hasher = PackageHasher(header)
    hasher.add_leaf(memoryview(leaves))
    signature = read_footer(descriptor, header)
    verify(creator_public_key, signature, hasher.signed_message(), "package")
    digest = hasher.digest(signature)
    if expected_digest is not None and not hmac.compare_digest(digest.encode(), expected_digest.encode()):
        raise AuthenticationError("package digest: not the expected one (another version, or rolled back)")
    return digest
