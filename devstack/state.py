"""The state folder `.intarsia/`, where everything of the local stack lives, and its generated secrets."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devstack.errors import LocalStackError
from devstack.private_file import write_private

REPOSITORY = Path(__file__).resolve().parents[1]
MINIMUM_FREE_BYTES = 2 * 2**30  # base model (.3 GB), its download, databases, logs, packages


FOLDERS = ("run", "logs", "keys", "blobs", "replica", "mails")
_CREATE_SECRET: dict[str, Callable[[], str]] = {
    "instance": lambda: secrets.token_hex(6),
    "postgres_password": lambda: secrets.token_urlsafe(32),
    "postgres_application_password": lambda: secrets.token_urlsafe(32),
    "valkey_password": lambda: secrets.token_urlsafe(32),
    "secret_key": lambda: secrets.token_urlsafe(32),
    "api_key_pepper": lambda: secrets.token_urlsafe(32),
    "stripe_api_key": lambda: "sk_test_" + secrets.token_hex(16),
    "stripe_webhook_secret": lambda: "whsec_" + secrets.token_hex(16),
    "sample_password": lambda: secrets.token_urlsafe(9),  # people type this one
    "sample_totp": lambda: base64.b32encode(secrets.token_bytes(20)).decode(),  # of the sample member of staff
}
SECRET_NAMES = tuple(_CREATE_SECRET)


@dataclass(frozen=True)
class State:
    """Paths under the state folder, and the generated secrets (kept in `secrets.json`, mode 0600)."""

    root: Path
    secrets: dict[str, str]

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def mails(self) -> Path:
        """Return the folder to which the platform writes its mails."""
        return self.root / "mails"

    @property
    def base_model(self) -> Path:
        """Return the folder of the converted base model, unless BASE_MODEL names another Hugging Face folder."""
        override = os.environ.get("BASE_MODEL")
        return Path(override).expanduser().resolve() if override else self.root / "base" / "smollm2-135m-instruct"

    @classmethod
    def open(cls, root: Path | None = None) -> State:
        """Create or open the state folder; several processes may do so at once.

        Raises LocalStackError when the folder cannot be written, the disk is full or the secrets cannot be read.
        """
        root = (root or Path(os.environ.get("INTARSIA_HOME", REPOSITORY / ".intarsia"))).absolute()
        try:
            for folder in (root, *(root / name for name in FOLDERS)):
                folder.mkdir(parents=True, exist_ok=True)
            (root / "keys").chmod(0o700)
            # An anonymous file, so that processes that open the folder at once do not unlink each other's.
            with tempfile.TemporaryFile(dir=root) as probe:
                probe.write(b"ok")
        except OSError as error:
            raise LocalStackError(
                f"cannot write to the state folder {root}: {error.strerror}.\n"
                "Make it writable, or choose another with INTARSIA_HOME=/path/to/folder."
            ) from error
        free = shutil.disk_usage(root).free
        if free < MINIMUM_FREE_BYTES:
            raise LocalStackError(
                f"only {free / 2**30:.1f} GiB free under {root}, {MINIMUM_FREE_BYTES // 2**30} GiB are needed.\n"
                "Free some space, or put the state on another disk with INTARSIA_HOME=/path/to/folder."
            )
        with _locked(root / "secrets.lock"):
            return cls(root, _load_or_create_secrets(root / "secrets.json"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file; the kernel drops it with its owner."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _load_or_create_secrets(path: Path) -> dict[str, str]:
    """Read the secrets and add those that the version which wrote the file did not have. The caller holds the lock."""
    try:
        known = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise LocalStackError(f"{path} cannot be read ({error}).\nRun `make clean` to start afresh.") from error
    if not isinstance(known, dict):
        raise LocalStackError(f"{path} is not a JSON object.\nRun `make clean` to start afresh.")
    missing = {name: create() for name, create in _CREATE_SECRET.items() if name not in known}
    if missing:
        known |= missing
        write_private(path, json.dumps(known, indent=1))
    return known


def free_port() -> int:
    """Return a TCP port that is free on loopback right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Return whether a server can listen on 127.0.0.1:`port` (a socket in TIME_WAIT does not count as taken)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
