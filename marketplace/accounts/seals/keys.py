"""The root key of this process, and the key of seals, which is derived from it and stored nowhere."""

from __future__ import annotations

from functools import cache

from django.conf import settings

from sealed_weights import FileKeyProvider

_PURPOSE = "row-seals"


@cache
def root_key() -> FileKeyProvider:
    """Return the provider of the root key (settings.ENV.root_key_file); raises `KeyFileError`."""
    return FileKeyProvider(settings.ENV.root_key_file)


@cache
def seal_key() -> bytes:
    """Return the 32 bytes under which rows are sealed; raises `KeyFileError`."""
    return root_key().derive(_PURPOSE)
