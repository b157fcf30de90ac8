"""The creator's Ed25519 signing key: created once on this machine and never sent anywhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from uuid import UUID

from creator_cli.control_api import ControlApi
from creator_cli.errors import ApiError, CliError
from creator_cli.private_files import write_private
from creator_cli.settings import Settings
from sealed_weights.signing import CreatorIdentity

_SIZE = 32


def identity_path(settings: Settings) -> Path:
    """Return the path of `identity.key` in the configuration folder: the 32-byte seed, 0600."""
    return settings.config_dir / "identity.key"


def load_identity(settings: Settings) -> CreatorIdentity:
    """Load this machine's signing key or create it; raises CliError if the file is unsafe or damaged."""
    path = identity_path(settings)
    if not path.exists():
        # If two processes get here at once, the first file stays and both read it.
        write_private(path, CreatorIdentity.generate().private_bytes(), replace=False)
    return CreatorIdentity.from_private_bytes(_read(path))


def register_identity(api: ControlApi, organization: str, identity: CreatorIdentity) -> UUID:
    """Register the public half with the organization, which is idempotent, and return its id; raises CliError."""
    try:
        return api.register_signing_key(organization, identity.public_bytes())
    except ApiError as error:
        if error.code == "key_taken":
            error.hint = "use a separate key for each organization: INTARSIA_CONFIG_DIR=… intarsia login"
        raise


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CliError(f"signing key {path}: cannot be opened ({error.strerror})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != _SIZE:
            raise CliError(f"signing key {path}: is damaged", hint=f"move it away: mv {path} {path}.bad")
        if status.st_mode & 0o077:
            raise CliError(f"signing key {path}: other users may read it", hint=f"chmod 600 {path}")
        return os.read(descriptor, _SIZE)
    finally:
        os.close(descriptor)
