"""The cleartext, authenticated header of a package, and the keys derived from it.

Layout (big-endian, 164 bytes): see docs/package-format.md.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sealed_weights.errors import FormatError
from sealed_weights.signing import SIGNATURE_SIZE

MAGIC = b"INTARSIA"
# AES-256-GCM chunks, HKDF-SHA512, SHA-256, Ed25519, in all: the suites differ in the files that a package carries.
SUITE = 1  # configuration and tensors
CONTRACT_SUITE = 2  # configuration, contract and tensors
ROWS_SUITE = 3  # the rows of an evaluation
REFERENCE_SUITE = 4  # configuration, perhaps a contract, PEFT's answers, and tensors
ADAPTER_SUITES = (SUITE, CONTRACT_SUITE, REFERENCE_SUITE)
SUITES = (*ADAPTER_SUITES, ROWS_SUITE)
CHUNK_SIZE = 1 << 20  # AES-GCM is at full speed from 256 KiB up; 1 MiB keeps the tag overhead at 16 per million
MIN_CHUNK_SIZE = 1 << 12
MAX_CHUNK_SIZE = 1 << 24
MAX_CHUNKS = 1 << 24
TAG_SIZE = 16
KEY_SIZE = 32

_LAYOUT = struct.Struct(">8sI16s16sQ32sIIQ32s")
UNCOMMITTED_SIZE = _LAYOUT.size
HEADER_SIZE = UNCOMMITTED_SIZE + 32
_KEY_INFO = b"intarsia/package/v1"


@dataclass(frozen=True, slots=True)
class PackageHeader:
    """The public part of a package: anyone may read it.

    `base_fingerprint`, `salt` and `commitment` are 32 bytes; sizes are in bytes; `version` is the creator's monotone
    number of adapters, or of sets of rows, of this model. The header is trustworthy only after `verify_signature` or
    `open_package`.
    """

    suite: int
    creator_id: UUID
    model_id: UUID
    version: int
    base_fingerprint: bytes
    chunk_size: int
    chunk_count: int
    plaintext_length: int
    salt: bytes
    commitment: bytes

    @property
    def package_size(self) -> int:
        """Exact size in bytes of the whole package file."""
        return HEADER_SIZE + self.plaintext_length + self.chunk_count * TAG_SIZE + SIGNATURE_SIZE

    def uncommitted_bytes(self) -> bytes:
        """Return the first 132 bytes: everything that the commitment commits to."""
        return _LAYOUT.pack(
            MAGIC,
            self.suite,
            self.creator_id.bytes,
            self.model_id.bytes,
            self.version,
            self.base_fingerprint,
            self.chunk_size,
            self.chunk_count,
            self.plaintext_length,
            self.salt,
        )

    def to_bytes(self) -> bytes:
        """Return the 164 header bytes as stored."""
        return self.uncommitted_bytes() + self.commitment

    def check(self) -> None:
        """Raise `FormatError` naming the first field that breaks a rule of the format."""
        size = self.chunk_size
        count = self.chunk_count
        rules = (
            ("suite", self.suite in SUITES, f"must be one of {', '.join(map(str, SUITES))}"),
            ("version", 1 <= self.version < 2**63, "must be between 1 and 2^63 - 1"),
            ("base_fingerprint", len(self.base_fingerprint) == 32, "must be 32 bytes"),
            ("salt", len(self.salt) == 32, "must be 32 bytes"),
            ("commitment", len(self.commitment) == 32, "must be 32 bytes"),
            (
                "chunk_size",
                MIN_CHUNK_SIZE <= size <= MAX_CHUNK_SIZE and size & (size - 1) == 0,
                f"must be a power of two between {MIN_CHUNK_SIZE} and {MAX_CHUNK_SIZE}",
            ),
            ("chunk_count", 1 <= count <= MAX_CHUNKS, f"must be between 1 and {MAX_CHUNKS}"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise FormatError(f"header {name}: {rule}")
        if not (count - 1) * size < self.plaintext_length <= count * size:
            raise FormatError("header plaintext_length: must fill exactly chunk_count chunks")

    @classmethod
    def from_bytes(cls, data: bytes) -> PackageHeader:
        """Parse and check 164 bytes; raises `FormatError`."""
        if len(data) != HEADER_SIZE or data[: len(MAGIC)] != MAGIC:
            raise FormatError("header magic: not a sealed package")
        _, suite, creator, model, version, base, size, count, length, salt = _LAYOUT.unpack(data[:UNCOMMITTED_SIZE])
        header = cls(
            suite=suite,
            creator_id=UUID(bytes=creator),
            model_id=UUID(bytes=model),
            version=version,
            base_fingerprint=base,
            chunk_size=size,
            chunk_count=count,
            plaintext_length=length,
            salt=salt,
            commitment=data[UNCOMMITTED_SIZE:],
        )
        header.check()
        return header


@dataclass(frozen=True, slots=True, repr=False)
class ChunkKeys:
    """The keys that HKDF yields for one package. All are secret except the commitment."""

    key: bytes
    commitment: bytes
    nonce_prefix: bytes

    def nonce(self, index: int) -> bytes:
        """Return the 12-byte GCM nonce of chunk `index`; unique because the salt is fresh for every package."""
        return self.nonce_prefix + struct.pack(">Q", index)


def derive_chunk_keys(dek: bytes | bytearray, header: PackageHeader) -> ChunkKeys:
    """Return HKDF-SHA512(dek, header.salt, info) → key ‖ commitment ‖ nonce prefix.

    The header (without the commitment) is in the info, so a header changed in any bit fails the commitment.
    Raises `FormatError` if `dek` is not 32 bytes.
    """
    if len(dek) != KEY_SIZE:
        raise FormatError("dek: must be 32 bytes")
    info = _KEY_INFO + hashlib.sha256(header.uncommitted_bytes()).digest()
    material = HKDF(algorithm=SHA512(), length=68, salt=header.salt, info=info).derive(dek)
    return ChunkKeys(material[:32], material[32:64], material[64:])


def commit(header: PackageHeader, keys: ChunkKeys) -> PackageHeader:
    """Return `header` with the commitment of `keys`."""
    return replace(header, commitment=keys.commitment)


def chunk_associated_data(header: PackageHeader, index: int) -> bytes:
    """Return SHA256(header) ‖ index ‖ total ‖ last flag: a chunk opens only in its own place in its own package."""
    last = index == header.chunk_count - 1
    return hashlib.sha256(header.to_bytes()).digest() + struct.pack(">QQ?", index, header.chunk_count, last)


def read_header(file: BinaryIO | Path) -> PackageHeader:
    """Read and check the header at the start of a package, given as a path or a file at offset 0.

    Raises `FormatError`. Nothing is proven yet: use `verify_signature` or `open_package` before trusting a field.
    """
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return PackageHeader.from_bytes(opened.read(HEADER_SIZE))
    return PackageHeader.from_bytes(file.read(HEADER_SIZE))
