"""Open a sealed package: plaintext goes from the cipher straight into one wipeable buffer, and nowhere else."""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealed_weights import payload
from sealed_weights.errors import AuthenticationError, CommitmentError, FormatError, MemoryNotLocked, SealError
from sealed_weights.files import OpenFile, open_regular, read_exactly
from sealed_weights.header import (
    ADAPTER_SUITES,
    HEADER_SIZE,
    ROWS_SUITE,
    TAG_SIZE,
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
_NO_FILES = payload.Payload(memoryview(b""), None, memoryview(b""))


class OpenedPackage:
    """The plaintext of a package, held in memory until `wipe` (or the end of the `with` block)."""

    def __init__(self, header: PackageHeader, digest: str, memory: SecretBuffer) -> None:
        """Take ownership of `memory`; raises `FormatError` if the payload is not well framed."""
        self.header = header
        self.digest = digest
        self._memory: SecretBuffer | None = memory
        self._rows: memoryview | None = None
        self._files = _NO_FILES
        if header.suite == ROWS_SUITE:
            self._rows = memory.view
        else:
            self._files = payload.split(memory.view, header.suite)

    @property
    def config(self) -> memoryview:
        """The bytes of `adapter_config.json`, in place. Raises `SealError` after `wipe`."""
        return self._open_files().config

    @property
    def contract(self) -> bytes | None:
        """A copy of `contract.json`, None in a package without one. Raises `SealError` after `wipe`."""
        contract = self._open_files().contract
        return None if contract is None else bytes(contract)

    @property
    def reference(self) -> bytes | None:
        """A copy of `reference.json`, None in a package without one. Raises `SealError` after `wipe`."""
        reference = self._open_files().reference
        return None if reference is None else bytes(reference)

    @property
    def tensors(self) -> memoryview:
        """The bytes of `adapter_model.safetensors`, in place, 64-byte aligned. Raises `SealError` after `wipe`."""
        return self._open_files().tensors

    @property
    def rows(self) -> memoryview:
        """The bytes of a set of rows, in place. Raises `SealError` after `wipe`, and for an adapter."""
        if self._memory is None or self._rows is None:
            raise SealError("opened package: holds no rows")
        return self._rows

    @property
    def locked(self) -> bool:
        """Whether the plaintext is locked in RAM; if not, it may reach swap."""
        return self._memory is not None and self._memory.locked

    def wipe(self) -> None:
        """Zero the plaintext. Views and arrays over it that still exist read zeros. May be called again."""
        if self._memory is not None:
            self._files, self._rows = _NO_FILES, None
            self._memory.wipe()
            self._memory = None

    def _open_files(self) -> payload.Payload:
        if self._memory is None:
            raise SealError("opened package: already wiped")
        return self._files

    def __enter__(self) -> OpenedPackage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()


class PackageOpening:
    """A package on its way to be opened: decrypt every chunk, in any order and from any threads, then call `finish`.

    Leaving the `with` block before `finish` wipes the plaintext. Each chunk is read once, hashed and decrypted, because
    a file read twice could change in between.
    """

    def __init__(
        self,
        source: Path | OpenFile,
        *,
        dek: bytes | bytearray,
        creator_public_key: bytes | Ed25519PublicKey,
        expected_digest: str | None,
        max_plaintext: int,
        must_lock: bool = False,
        suites: Collection[int] = ADAPTER_SUITES,
    ) -> None:
        """Check size, header and key commitment (in constant time); arguments and errors as in `open_package`.

        A package of a suite that is not in `suites` is refused before its key is used.
        """
        self._creator_public_key = creator_public_key
        self._expected_digest = expected_digest
        self._finished = False
        with ExitStack() as stack:
            if isinstance(source, Path):
                self._descriptor, size = stack.enter_context(open_regular(source))
            else:
                self._descriptor, size = source.descriptor, source.size
            self.header = header = read_sized_header(self._descriptor, size)
            if header.suite not in suites:
                raise FormatError(f"header suite: {header.suite} is not what is opened here")
            if header.plaintext_length > max_plaintext:
                raise FormatError(f"header plaintext_length: must be at most {max_plaintext} bytes")
            self._keys = keys = derive_chunk_keys(dek, header)
            if not hmac.compare_digest(keys.commitment, header.commitment):
                raise CommitmentError(
                    "header commitment: the key does not match this package, or its header was changed"
                )
            self._cipher = AESGCM(keys.key)
            # GCM leaves the plaintext in the destination even when the tag is wrong: every way out wipes it.
            self._memory = SecretBuffer(header.plaintext_length)
            stack.callback(self._wipe_unless_finished)
            if must_lock and not self._memory.locked:
                raise MemoryNotLocked(f"{header.plaintext_length} bytes cannot be locked in RAM (RLIMIT_MEMLOCK)")
            self._exits = stack.pop_all()
        self._leaves = bytearray(32 * header.chunk_count)
        self._decrypted = [False] * header.chunk_count
        self._scratch = threading.local()

    def decrypt(self, index: int) -> None:
        """Decrypt one chunk, 0 <= index < `header.chunk_count`. Raises AuthenticationError if it was changed."""
        header = self.header
        if not hasattr(self._scratch, "memory"):
            self._scratch.memory = bytearray(header.chunk_size + TAG_SIZE)
        scratch = self._scratch.memory
        start = index * header.chunk_size
        plain = self._memory.view[start : start + header.chunk_size]
        stored = memoryview(scratch)[: len(plain) + TAG_SIZE]
        read_exactly(self._descriptor, stored, HEADER_SIZE + index * len(scratch))
        self._leaves[32 * index : 32 * index + 32] = hashlib.sha256(stored).digest()
        try:
            self._cipher.decrypt_into(self._keys.nonce(index), stored, chunk_associated_data(header, index), plain)
        except InvalidTag:
            raise AuthenticationError(f"chunk {index}: changed, moved or from another package") from None
        self._decrypted[index] = True

    def finish(self) -> OpenedPackage:
        """Verify signature and digest over all chunks. Raises SealError if one was not decrypted."""
        if not all(self._decrypted):
            raise SealError("opened package: not every chunk was decrypted")
        digest = _verify_whole(
            self._descriptor, self.header, self._leaves, self._creator_public_key, self._expected_digest
        )
        opened = OpenedPackage(self.header, digest, self._memory)
        self._finished = True
        return opened

    def __enter__(self) -> PackageOpening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def _wipe_unless_finished(self) -> None:
        if not self._finished:
            self._memory.wipe()


def open_package(
    source: Path | OpenFile,
    *,
    dek: bytes | bytearray,
    creator_public_key: bytes | Ed25519PublicKey,
    expected_digest: str | None,
    max_plaintext: int,
    must_lock: bool = False,
    threads: int | None = None,
) -> OpenedPackage:
    """Decrypt and verify a package in one pass; nothing is returned unless everything holds.

    Order: size and header, key commitment (constant time, before any chunk), every chunk, then signature and digest.
    `expected_digest` pins the version against rollback; pass None only for a package just sealed here. `max_plaintext`
    (bytes) is checked before memory is taken. `must_lock` refuses memory that could reach swap. `threads` defaults to
    the processors at hand, one below 8 MiB.

    Raises `FormatError`, `CommitmentError`, `AuthenticationError` or `SignatureError`, the plaintext zeroed, or
    `MemoryNotLocked` before there is any.
    """
    with PackageOpening(
        source,
        dek=dek,
        creator_public_key=creator_public_key,
        expected_digest=expected_digest,
        max_plaintext=max_plaintext,
        must_lock=must_lock,
    ) as opening:
        over_chunks(opening.decrypt, opening.header, threads)
        return opening.finish()


def open_rows(
    source: Path, *, dek: bytes | bytearray, creator_public_key: bytes, expected_digest: str | None, max_plaintext: int
) -> OpenedPackage:
    """Decrypt and verify a set of rows as `open_package` does an adapter; its property `rows` holds them."""
    with PackageOpening(
        source,
        dek=dek,
        creator_public_key=creator_public_key,
        expected_digest=expected_digest,
        max_plaintext=max_plaintext,
        suites=(ROWS_SUITE,),
    ) as opening:
        over_chunks(opening.decrypt, opening.header)
        return opening.finish()


def over_chunks(work: Callable[[int], None], header: PackageHeader, threads: int | None = None) -> None:
    """Call `work` with the index of every chunk, on as many threads as pay; stop at the first error and raise it."""
    count = threads or _default_threads(header)
    failed = threading.Event()

    # Read, SHA-256 and AES-GCM all release the GIL, so striding chunks over threads scales with cores.
    def stride(first: int) -> None:
        try:
            for index in range(first, header.chunk_count, count):
                if failed.is_set():
                    return
                work(index)
        except BaseException:
            failed.set()
            raise

    if count == 1:
        stride(0)
        return
    with ThreadPoolExecutor(count, thread_name_prefix="open-package") as pool:
        running = [pool.submit(stride, first) for first in range(count)]
    for future in running:
        future.result()


def _default_threads(header: PackageHeader) -> int:
    if header.plaintext_length < PARALLEL_FROM:
        return 1
    return min(len(os.sched_getaffinity(0)), MAX_THREADS, header.chunk_count)


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
