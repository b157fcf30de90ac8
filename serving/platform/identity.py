"""A replica's identity: an Ed25519 key pair in its state folder, for which it traded its credential once.

Every boot of the replica registers with a signature of it. It opens no package and signs no receipt: those keys belong
to one boot and are never written anywhere.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import encode_base64url
from protocol.replicas import EnrolmentRequest, enrolment_message
from protocol.version import PROTOCOL_VERSION
from serving.errors import ConfigError
from serving.platform.errors import LeaseRefused, PlatformError
from serving.platform.vault_client import VaultClient

MAX_CREDENTIAL_BYTES = 200
_KEY_BYTES = 32


class NotEnrolled(PlatformError):
    """The platform does not know this replica yet; the message says what an operator does about it."""

    code = "not_enrolled"


class ReplicaIdentity:
    """The identity of the replica `name`, kept in `folder`. It is enrolled once the platform has taken it."""

    def __init__(
        self, folder: Path, name: str, credential_file: Path | None = None, *, shared_credential: bool = False
    ) -> None:
        """Load the key, or make it. Raises ConfigError if the folder or the key cannot be used.

        shared_credential: a fleet's, which stays where it is; each boot shows it, so that a name that was revoked with
            its pool comes back under a newer one
        """
        self._name, self._credential_file = name, credential_file
        self._shared = shared_credential
        self._path, self._enrolled = folder / "identity.key", folder / "enrolled"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._key = Ed25519PrivateKey.from_private_bytes(_load_or_make(self._path))
        except (OSError, ValueError) as error:
            raise ConfigError(f"the replica's identity {self._path} cannot be used: {error}") from None

    @property
    def name(self) -> str:
        """Return the name of the replica."""
        return self._name

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a registration message."""
        return self._key.sign(message)

    def enrol(self, client: VaultClient) -> None:
        """Trade the credential for this identity, unless that was done before and no new credential is there.

        The file of a replica's own credential is removed afterwards: it is of no use to anyone. Raises NotEnrolled
        without a credential, and what `VaultClient.enrol` raises.
        """
        present = self._credential_file is not None and self._credential_file.exists()
        if self._enrolled.exists() and not present:
            return
        credential = self._credential()
        public = encode_base64url(self._key.public_key().public_bytes_raw())
        message = enrolment_message(name=self._name, credential=credential, identity_public_key=public)
        request = EnrolmentRequest(
            protocol_version=PROTOCOL_VERSION,
            name=self._name,
            credential=credential,
            identity_public_key=public,
            signature=encode_base64url(self._key.sign(message)),
        )
        try:
            client.enrol(request)
        except LeaseRefused:
            if not (self._shared and self._enrolled.exists()):
                raise
            return  # a credential that was replaced since: whether the name still counts, registration says
        self._enrolled.touch(mode=0o600)
        if self._credential_file is not None and not self._shared:
            with contextlib.suppress(OSError):  # a read-only mount, for example
                self._credential_file.unlink()

    def _credential(self) -> str:
        advice = f"issue one with `manage.py issue_replica_credential {self._name}` and put it there"
        if self._credential_file is None:
            raise NotEnrolled("this replica is not enrolled; start it with --credential-file")
        try:
            with self._credential_file.open("rb") as file:
                credential = file.read(MAX_CREDENTIAL_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            raise NotEnrolled(f"no credential at {self._credential_file} ({error.strerror}): {advice}") from None
        if not credential:
            raise NotEnrolled(f"the credential file {self._credential_file} is empty: {advice}")
        return credential


def _load_or_make(path: Path) -> bytes:
    """Return the private key's 32 bytes. A crash leaves the whole file, or none."""
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}.part")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, Ed25519PrivateKey.generate().private_bytes_raw())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            raise ValueError("it may be readable by its owner alone (mode 0600)")
        key = os.read(descriptor, _KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"it must have {_KEY_BYTES} bytes")
    return key
