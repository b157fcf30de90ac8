"""Write a sealed package, and check one without the key. Reading it with the key is in `opened.py`.

The digest and the signature cover SHA-256 of every stored chunk, not only the GCM tags: anyone who holds the key can
make two ciphertexts with the same tag, so a digest over tags would let a creator show one adapter and serve another.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sealed_weights import payload
from sealed_weights.canonical import encode
from sealed_weights.contract import contract_bytes
from sealed_weights.errors import FormatError
from sealed_weights.files import atomic_write, open_regular, read_exactly
from sealed_weights.header import (
    CHUNK_SIZE,
    HEADER_SIZE,
    ROWS_SUITE,
    TAG_SIZE,
    PackageHeader,
    chunk_associated_data,
    commit,
    derive_chunk_keys,
)
from sealed_weights.reference import reference_bytes
from sealed_weights.secret_memory import wipe
from sealed_weights.signing import SIGNATURE_SIZE, CreatorIdentity, verify

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SealedPackage:
    """A package on disk: `digest` is its identity everywhere (64 hex digits), `size` is in bytes."""

    path: Path
    digest: str
    size: int
    header: PackageHeader


class PackageHasher:
    """Accumulates what a package's signature and digest are computed from: the header and SHA-256 of each chunk."""

    def __init__(self, header: PackageHeader) -> None:
        """Start with `header`."""
        self._body = hashlib.sha256(header.to_bytes())

    def add_leaf(self, leaf: bytes | memoryview) -> None:
        """Add SHA-256(ciphertext ‖ tag) of the next chunk, in order."""
        self._body.update(leaf)

    def signed_message(self) -> bytes:
        """Return the message that the creator signs."""
        return encode("intarsia/package/v1/signature", self._body.digest())

    def digest(self, signature: bytes) -> str:
        """Return the package digest, 64 hex digits."""
        return hashlib.sha256(encode("intarsia/package/v1/digest", self._body.digest(), signature)).hexdigest()


def seal_package(
    source_dir: Path,
    destination: Path,
    *,
    dek: bytes | bytearray,
    identity: CreatorIdentity,
    creator_id: UUID,
    model_id: UUID,
    version: int,
    base_fingerprint: bytes,
    progress: Progress | None = None,
    chunk_size: int = CHUNK_SIZE,
) -> SealedPackage:
    """Seal `adapter_config.json` and `adapter_model.safetensors` of `source_dir` into `destination`.

    A `contract.json` and a `reference.json` beside them are sealed too, each in its one form (`to_bytes`).

    The destination is written under another name, fsynced and renamed: it is complete or absent.
    `progress(done, total)` counts plaintext bytes. Every call draws a fresh salt, so the same key never meets the same
    nonce. Raises `FormatError` for a missing, special, empty or shrinking source file, for a malformed contract or
    reference and for a header field out of range. Does not run intake: call `check_adapter` first.
    """
    return _seal(
        source_dir,
        destination,
        os.urandom(32),
        dek,
        identity,
        creator_id,
        model_id,
        version,
        base_fingerprint,
        progress,
        chunk_size,
    )


def _seal(
    source_dir: Path,
    destination: Path,
    salt: bytes,
    dek: bytes | bytearray,
    identity: CreatorIdentity,
    creator_id: UUID,
    model_id: UUID,
    version: int,
    base_fingerprint: bytes,
    progress: Progress | None,
    chunk_size: int,
) -> SealedPackage:
    # The salt is a parameter here alone, for the fixed test vectors: a salt used twice with one key breaks AES-GCM.
    with (
        open_regular(source_dir / payload.CONFIG_NAME, follow_links=True) as (config_file, config_size),
        open_regular(source_dir / payload.TENSORS_NAME, follow_links=True) as (tensors_file, tensors_size),
    ):
        if config_size > payload.MAX_CONFIG:
            raise FormatError(f"{payload.CONFIG_NAME}: must be at most {payload.MAX_CONFIG} bytes long")
        config = bytearray(config_size)
        read_exactly(config_file, memoryview(config), 0)
        contract = contract_bytes(source_dir)
        reference = reference_bytes(source_dir)
        prefix = payload.frame_prefix(bytes(config), tensors_size, contract, reference)
        length = len(prefix) + tensors_size
        header = PackageHeader(
            payload.suite_of(contract, reference),
            creator_id,
            model_id,
            version,
            base_fingerprint,
            chunk_size,
            -(-length // chunk_size),
            length,
            salt,
            bytes(32),
        )
        header.check()
        return _write(destination, header, dek, identity, _read_chunks(tensors_file, prefix, header, progress))


def seal_rows(
    rows: bytes | bytearray,
    destination: Path,
    *,
    dek: bytes | bytearray,
    identity: CreatorIdentity,
    creator_id: UUID,
    model_id: UUID,
    number: int,
    base_fingerprint: bytes,
) -> SealedPackage:
    """Seal the rows of an evaluation into `destination`, as the model's set `number`: a package of suite 3.

    Raises `FormatError` for no rows at all and for a header field out of range. Does not look at the rows.
    """
    return _seal_rows(rows, destination, os.urandom(32), dek, identity, creator_id, model_id, number, base_fingerprint)


def _seal_rows(
    rows: bytes | bytearray,
    destination: Path,
    salt: bytes,
    dek: bytes | bytearray,
    identity: CreatorIdentity,
    creator_id: UUID,
    model_id: UUID,
    number: int,
    base_fingerprint: bytes,
    chunk_size: int = CHUNK_SIZE,
) -> SealedPackage:
    if not rows:
        raise FormatError("rows: must not be empty")
    count = -(-len(rows) // chunk_size)
    header = PackageHeader(
        ROWS_SUITE,
        creator_id,
        model_id,
        number,
        base_fingerprint,
        chunk_size,
        count,
        len(rows),
        salt,
        bytes(32),
    )
    header.check()
    view = memoryview(rows)
    chunks = (view[index * chunk_size : (index + 1) * chunk_size] for index in range(count))
    return _write(destination, header, dek, identity, chunks)


def _write(
    destination: Path,
    header: PackageHeader,
    dek: bytes | bytearray,
    identity: CreatorIdentity,
    chunks: Iterable[memoryview],
) -> SealedPackage:
    keys = derive_chunk_keys(dek, header)
    header = commit(header, keys)
    with atomic_write(destination) as out:
        out.write(header.to_bytes())
        hasher = PackageHasher(header)
        for index, chunk in enumerate(chunks):
            stored = AESGCM(keys.key).encrypt(keys.nonce(index), chunk, chunk_associated_data(header, index))
            hasher.add_leaf(hashlib.sha256(stored).digest())
            out.write(stored)
        signature = identity.sign(hasher.signed_message())
        out.write(signature)
    return SealedPackage(destination, hasher.digest(signature), header.package_size, header)


def _read_chunks(
    tensors_file: int, prefix: bytes, header: PackageHeader, progress: Progress | None
) -> Iterator[memoryview]:
    """Yield the plaintext chunks, each in one reused buffer that is wiped at the end."""
    buffer = bytearray(header.chunk_size)
    view = memoryview(buffer)
    try:
        for start in range(0, header.plaintext_length, header.chunk_size):
            size = min(header.chunk_size, header.plaintext_length - start)
            framed = prefix[start : start + size]
            view[: len(framed)] = framed
            # Where the prefix ends inside this chunk, the tensors follow; before that, nothing is read.
            read_exactly(tensors_file, view[len(framed) : size], max(0, start - len(prefix)))
            yield view[:size]
            if progress:
                progress(start + size, header.plaintext_length)
    finally:
        wipe(buffer)


def package_digest(path: Path, *, progress: Progress | None = None) -> str:
    """Return the digest (64 hex digits) of a ciphertext file, without a key. `progress(done, total)` counts file bytes.

    Raises `FormatError` for a file that is not a package of exactly its stated size.
    """
    hasher, signature = _hash_package(path, progress)
    return hasher.digest(signature)


def verify_signature(path: Path, creator_public_key: bytes | Ed25519PublicKey) -> str:
    """Check the creator's signature over the whole ciphertext file, without the DEK, and return the digest.

    Raises `FormatError` or `SignatureError`.
    """
    hasher, signature = _hash_package(path, None)
    verify(creator_public_key, signature, hasher.signed_message(), "package")
    return hasher.digest(signature)


def _hash_package(path: Path, progress: Progress | None) -> tuple[PackageHasher, bytes]:
    with open_regular(path) as (descriptor, size):
        header = read_sized_header(descriptor, size)
        hasher = PackageHasher(header)
        buffer = bytearray(header.chunk_size + TAG_SIZE)
        offset = HEADER_SIZE
        while offset < size - SIGNATURE_SIZE:
            stored = memoryview(buffer)[: min(len(buffer), size - SIGNATURE_SIZE - offset)]
            read_exactly(descriptor, stored, offset)
            hasher.add_leaf(hashlib.sha256(stored).digest())
            offset += len(stored)
            if progress:
                progress(offset, size)
        return hasher, read_footer(descriptor, header)


def read_sized_header(descriptor: int, size: int) -> PackageHeader:
    """Read the header of a package file of `size` bytes; raises `FormatError` unless the size is exactly as stated."""
    stored = bytearray(min(size, HEADER_SIZE))
    read_exactly(descriptor, memoryview(stored), 0)
    header = PackageHeader.from_bytes(bytes(stored))
    if size != header.package_size:
        raise FormatError(f"package size: must be {header.package_size} bytes, is {size}")
    return header


def read_footer(descriptor: int, header: PackageHeader) -> bytes:
    """Read the 64 signature bytes at the end of a package."""
    footer = bytearray(SIGNATURE_SIZE)
    read_exactly(descriptor, memoryview(footer), header.package_size - SIGNATURE_SIZE)
    return bytes(footer)
