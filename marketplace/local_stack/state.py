"""The state folder `.intarsia/`: where everything of the local stack lives, and its generated secrets."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from marketplace.local_stack.errors import LocalStackError

REPOSITORY = Path(__file__).resolve().parents[2]
MINIMUM_FREE_BYTES = 2 * 2**30  # base model (.3 GB), its download, databases, logs, packages


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
    def base_model(self) -> Path:
        """The converted base model, unless BASE_MODEL names another Hugging Face folder."""
        override = os.environ.get("BASE_MODEL")
        return Path(override).expanduser().resolve() if override else self.root / "base" / "smollm2-135m-instruct"

    @classmethod
    def open(cls, root: Path | None = None) -> State:
        """Create or open the state folder. Raises LocalStackError when it cannot be written or the disk is full."""
        root = (root or Path(os.environ.get("INTARSIA_HOME", REPOSITORY / ".intarsia"))).absolute()
        try:
            for folder in (root, root / "run", root / "logs", root / "keys", root / "blobs", root / "replica"):
                folder.mkdir(parents=True, exist_ok=True)
            (root / "keys").chmod(0o700)
            probe = root / "run" / ".writable"
            probe.write_text("ok")
            probe.unlink()
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
        return cls(root, _load_or_create_secrets(root / "secrets.json"))


SECRET_NAMES = (
    "instance",
    "postgres_password",
    "valkey_password",
    "secret_key",
    "api_key_pepper",
    "enrolment_token",
    "stripe_api_key",
    "stripe_webhook_secret",
    "sample_password",
)


def _load_or_create_secrets(path: Path) -> dict[str, str]:
    """Read the secrets, adding any that an older version of this file lacked. Written atomically, mode 0600."""
    try:
        known = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise LocalStackError(f"{path} cannot be read ({error}).\nRun `make clean` to start afresh.") from error
    if not isinstance(known, dict):
        raise LocalStackError(f"{path} is not a JSON object.\nRun `make clean` to start afresh.")
    missing = [name for name in SECRET_NAMES if name not in known]
    if missing:
        for name in missing:
            known[name] = secrets.token_hex(6) if name == "instance" else secrets.token_urlsafe(32)
        if "sample_password" in missing:
            known["sample_password"] = secrets.token_urlsafe(9)
        if "stripe_api_key" in missing:
            known["stripe_api_key"] = "sk_test_" + secrets.token_hex(16)
        if "stripe_webhook_secret" in missing:
            known["stripe_webhook_secret"] = "whsec_" + secrets.token_hex(16)
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(known, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    return known


def free_port() -> int:
    """A TCP port that is free on loopback right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether 127.0.0.1:`port` can be listened on (a socket in TIME_WAIT does not count as taken)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
