"""A push that is not finished: its sealed package and wrapped data key, stored so that it can continue later.

The data key itself is never stored: it exists in memory while the package is sealed, and is then wiped. The stored
package is ciphertext, so an upload always continues with the same bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from creator_cli.control_api import ControlApi
from creator_cli.errors import ApiError, CliError
from creator_cli.names import ModelName
from creator_cli.private_files import private_folder, read_json, write_json
from creator_cli.reading import Reader
from creator_cli.records import Version
from creator_cli.settings import Settings
from protocol.encoding import encode_base64url
from sealed_weights.contract import read_contract
from sealed_weights.errors import SealError
from sealed_weights.keys import generate_key
from sealed_weights.package import package_digest, seal_package
from sealed_weights.payload import CONFIG_NAME, TENSORS_NAME
from sealed_weights.reference import read_reference
from sealed_weights.secret_memory import wipe
from sealed_weights.signing import CreatorIdentity
from sealed_weights.wrap import fingerprint, wrap_dek_for_platform

_FORMAT = 1
_BLOCK = 1 << 20
# The states of a completely uploaded package in which a push still has something to do or to report.
_CONTINUED = frozenset({"verifying", "verified", "in_review", "refused", "published"})


@dataclass(frozen=True, slots=True)
class SealedUpload:
    """A package ready to be sent: `digest` in hex, the data key wrapped to the intake key of this fingerprint."""

    digest: str
    wrapped_data_key: bytes
    intake_fingerprint: str


@dataclass(frozen=True, slots=True)
class PendingPush:
    """The subject of a push: the source's SHA-256 and the signing key decide whether a later push continues it."""

    version_id: UUID
    number: int
    package_size: int
    source: str
    signer: str
    sealed: SealedUpload | None


class PendingStore:
    """The unfinished push of one model on one platform; one process at a time."""

    def __init__(self, settings: Settings, url: str, model: ModelName) -> None:
        name = hashlib.sha256(f"{url}\n{model}".encode()).hexdigest()[:32]
        self._folder = settings.cache_dir / "uploads" / name
        self._record = self._folder / "push.json"
        self._model = model
        self.package = self._folder / "package.sealed"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of this push; raises CliError if another process holds it."""
        private_folder(self._folder)
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CliError(f"another push of {self._model} is running; wait until it ends") from None
            yield
        finally:
            os.close(descriptor)

    def load(self) -> PendingPush | None:
        """Return the unfinished push, or None if there is none or its record cannot be read."""
        try:
            value = read_json(self._record)
            if value is None or value.get("format") != _FORMAT:
                return None
            reader = Reader(value, "push")
            sealed = None
            if reader.has("sealed"):
                part = reader.part("sealed")
                sealed = SealedUpload(
                    part.text("digest"), part.data("wrapped_data_key"), part.text("intake_fingerprint")
                )
            return PendingPush(
                version_id=reader.uuid("version_id"),
                number=reader.integer("number"),
                package_size=reader.integer("package_size"),
                source=reader.text("source"),
                signer=reader.text("signer"),
                sealed=sealed,
            )
        except CliError:
            return None

    def save(self, push: PendingPush) -> None:
        """Store the unfinished push; raises CliError."""
        sealed = push.sealed
        write_json(
            self._record,
            {
                "format": _FORMAT,
                "version_id": str(push.version_id),
                "number": push.number,
                "package_size": push.package_size,
                "source": push.source,
                "signer": push.signer,
                "sealed": sealed
                and {
                    "digest": sealed.digest,
                    "wrapped_data_key": encode_base64url(sealed.wrapped_data_key),
                    "intake_fingerprint": sealed.intake_fingerprint,
                },
            },
        )

    def clear(self) -> None:
        """Delete the record and the package."""
        self._record.unlink(missing_ok=True)
        self.drop_package()

    def drop_package(self) -> None:
        """Delete the package, which the platform has by now."""
        self.package.unlink(missing_ok=True)

    def package_is(self, digest: str) -> bool:
        """Return whether the stored package is complete and has this digest."""
        try:
            return package_digest(self.package) == digest
        except SealError:
            return False


def version_to_continue(
    api: ControlApi,
    store: PendingStore,
    pending: PendingPush,
    *,
    source: str,
    signer: str,
    package_size: int,
    intake_fingerprint: str,
) -> Version | None:
    """Return the current version of `pending`, or None if the push cannot be continued.

    It cannot with another adapter, signing key or platform key, with a damaged cache, or after the platform has dropped
    or finished the version.
    """
    if pending.source != source or pending.signer != signer:
        return None
    try:
        version = api.version(pending.version_id)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    if version.state != "uploading":
        # A version without a digest was never uploaded completely: it expired.
        return version if version.digest and version.state in _CONTINUED else None
    if version.size != package_size:
        return None
    if pending.sealed is None:
        # No package was sealed under this number, so the platform must not have received any byte of one.
        return version if version.uploaded == 0 else None
    same_key = pending.sealed.intake_fingerprint == intake_fingerprint
    return version if same_key and store.package_is(pending.sealed.digest) else None


def source_hash(folder: Path, progress: Callable[[int], None]) -> str:
    """Return the SHA-256 of an adapter's files, in hex. `progress` is called with the number of bytes read."""
    hasher = hashlib.sha256()
    done = 0
    for name in (CONFIG_NAME, TENSORS_NAME):
        file_hasher = hashlib.sha256()
        with (folder / name).open("rb") as file:
            while block := file.read(_BLOCK):
                file_hasher.update(block)
                done += len(block)
                progress(done)
        hasher.update(file_hasher.digest())
    if (contract := read_contract(folder)) is not None:
        hasher.update(hashlib.sha256(contract.to_bytes()).digest())
    if (reference := read_reference(folder)) is not None:
        hasher.update(hashlib.sha256(reference.to_bytes()).digest())
    return hasher.hexdigest()


def seal_for_upload(
    folder: Path,
    destination: Path,
    *,
    version: Version,
    identity: CreatorIdentity,
    intake_key: bytes,
    progress: Callable[[int, int], None],
) -> SealedUpload:
    """Seal the adapter as `version` under a fresh data key, which is wrapped to the platform and wiped.

    Raises CliError when the disk is too small or the sealed size is not the announced one.
    """
    if shutil.disk_usage(destination.parent).free < version.size + _BLOCK:
        raise CliError(
            f"{destination.parent}: not enough space for a sealed package of {version.size} bytes",
            hint="free some space, or set INTARSIA_CACHE_DIR to another disk",
        )
    dek = generate_key()
    try:
        package = seal_package(
            folder,
            destination,
            dek=dek,
            identity=identity,
            creator_id=version.creator_id,
            model_id=version.model_id,
            version=version.number,
            base_fingerprint=bytes.fromhex(version.base_fingerprint),
            progress=progress,
        )
        if package.size != version.size:
            raise CliError("the adapter changed during the push", hint="run the command again")
        wrapped = wrap_dek_for_platform(
            dek,
            intake_key,
            creator_id=version.creator_id,
            model_id=version.model_id,
            version=version.number,
            digest=package.digest,
        )
    finally:
        wipe(dek)
    return SealedUpload(package.digest, wrapped, fingerprint(intake_key))
