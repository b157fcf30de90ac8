"""The key hierarchy: root key (behind `KeyProvider`) → one KEK per creator → one DEK per version.

A wrapped key is `u8 format = 1 ‖ 12-byte nonce ‖ AES-256-GCM ciphertext ‖ tag`, its context as associated data.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sealed_weights.canonical import encode, encode_context
from sealed_weights.errors import AuthenticationError, FormatError, KeyFileError
from sealed_weights.files import fsync_directory, read_exactly

KEY_SIZE = 32
_FORMAT = b"\x01"
_NONCE_SIZE = 12
_TAG_SIZE = 16
_DOMAIN = "intarsia/key-wrap/v1"
_DERIVE_DOMAIN = "intarsia/derived-key/v1"
_MAX_WRAPPED = 1 << 16


class KeyProvider(Protocol):
    """The holder of the root key: a file, a KMS or a vault. The root key itself is never handed out."""

    def wrap(self, plaintext: bytes | bytearray, context: Mapping[str, str]) -> bytes:
        """Encrypt a key; `context` must be given again to unwrap."""
        ...

    def unwrap(self, wrapped: bytes, context: Mapping[str, str]) -> bytearray:
        """Decrypt a key; raises `AuthenticationError` if the bytes or the context are not those of `wrap`."""
        ...

    def derive(self, purpose: str) -> bytes:
        """Return a 32-byte key that follows from the root key and `purpose` alone; it need not be stored."""
        ...


def generate_key() -> bytearray:
    """Return a random 32-byte key in memory that can be wiped."""
    return bytearray(secrets.token_bytes(KEY_SIZE))


def wrap_key(kek: bytes | bytearray, key: bytes | bytearray, context: Mapping[str, str]) -> bytes:
    """Encrypt `key` under the 32-byte `kek`, bound to `context`. Raises `FormatError` for a kek of another length."""
    if len(kek) != KEY_SIZE:
        raise FormatError("kek: must be 32 bytes")
    nonce = os.urandom(_NONCE_SIZE)
    return _FORMAT + nonce + AESGCM(kek).encrypt(nonce, key, encode_context(_DOMAIN, context))


def unwrap_key(kek: bytes | bytearray, wrapped: bytes, context: Mapping[str, str]) -> bytearray:
    """Decrypt a key of `wrap_key`; raises `FormatError`, or `AuthenticationError` for a wrong byte, key or context."""
    if len(kek) != KEY_SIZE:
        raise FormatError("kek: must be 32 bytes")
    size = len(wrapped) - len(_FORMAT) - _NONCE_SIZE - _TAG_SIZE
    if not 0 < size <= _MAX_WRAPPED or wrapped[:1] != _FORMAT:
        raise FormatError("wrapped key: not in format 1")
    nonce = wrapped[1 : 1 + _NONCE_SIZE]
    key = bytearray(size)
    try:
        AESGCM(kek).decrypt_into(nonce, wrapped[1 + _NONCE_SIZE :], encode_context(_DOMAIN, context), key)
    except InvalidTag:
        key[:] = bytes(size)  # the cipher leaves plaintext behind even when the tag is wrong
        raise AuthenticationError("wrapped key: not of this key and context") from None
    return key


def create_creator_kek(provider: KeyProvider, creator_id: UUID) -> bytes:
    """Make a creator's random 32-byte KEK and return it wrapped by the root key, to be stored."""
    kek = generate_key()
    try:
        return provider.wrap(kek, _creator_context(creator_id))
    finally:
        kek[:] = bytes(KEY_SIZE)


def open_creator_kek(provider: KeyProvider, wrapped: bytes, creator_id: UUID) -> bytearray:
    """Unwrap a creator's KEK; raises `AuthenticationError` if it is another creator's. Wipe it after use."""
    return provider.unwrap(wrapped, _creator_context(creator_id))


def _creator_context(creator_id: UUID) -> dict[str, str]:
    return {"purpose": "creator-kek", "creator_id": str(creator_id)}


class FileKeyProvider:
    """A root key in a 0600 file of exactly 32 bytes, made on first use."""

    def __init__(self, path: Path) -> None:
        """Create the file if it is missing, then load it.

        Two processes may start at once: both end with the same key. Raises `KeyFileError` for a link, a file that
        others may read or write, another owner, or another size.
        """
        if not path.exists() and not path.is_symlink():
            _create_key_file(path)
        self._root = _read_key_file(path)

    def wrap(self, plaintext: bytes | bytearray, context: Mapping[str, str]) -> bytes:
        """See `KeyProvider.wrap`."""
        return wrap_key(self._root, plaintext, context)

    def unwrap(self, wrapped: bytes, context: Mapping[str, str]) -> bytearray:
        """See `KeyProvider.unwrap`."""
        return unwrap_key(self._root, wrapped, context)

    def derive(self, purpose: str) -> bytes:
        """See `KeyProvider.derive`: HKDF-SHA256."""
        info = encode(_DERIVE_DOMAIN, purpose)
        return HKDF(algorithm=SHA256(), length=KEY_SIZE, salt=None, info=info).derive(bytes(self._root))


def _create_key_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_SIZE))
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, never replaces a key that another process has just put there.
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    finally:
        os.unlink(part)
    fsync_directory(path.parent)


def _read_key_file(path: Path) -> bytearray:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeyFileError(f"key file {path}: cannot be opened ({error.strerror})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(f"key file {path}: must be a regular file")
        if status.st_mode & 0o077:
            raise KeyFileError(f"key file {path}: others may access it; run: chmod 600 {path}")
        if status.st_uid not in (os.geteuid(), 0):
            raise KeyFileError(f"key file {path}: must be owned by the user of this process")
        if status.st_size != KEY_SIZE:
            raise KeyFileError(f"key file {path}: must be exactly {KEY_SIZE} bytes")
        key = bytearray(KEY_SIZE)
        read_exactly(descriptor, memoryview(key), 0)
        return key
    finally:
        os.close(descriptor)
