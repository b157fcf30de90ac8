"""A replica's settings towards the platform; flags are made from the fields, as in serving.config."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from protocol.names import is_replica_name
from serving.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PlatformConfig:
    """Validated settings. `credential_file` is needed until the replica is enrolled.

    shared_credential: the file is that of a fleet, whose other replicas need it too: it is never removed
    """

    platform_url: str
    advertise_url: str
    state_dir: Path
    replica_name: str
    credential_file: Path | None
    allow_unlocked_memory: bool = False
    shared_credential: bool = False

    @property
    def journal_dir(self) -> Path:
        """Return the folder of this replica name's usage journal."""
        return self.state_dir / "journals" / self.replica_name

    @property
    def identity_dir(self) -> Path:
        """Return the folder of this replica name's identity."""
        return self.state_dir / "identities" / self.replica_name

    @property
    def package_dir(self) -> Path:
        """Return the folder of sealed packages (ciphertext)."""
        return self.state_dir / "packages"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the platform's flags; all are optional, --platform-url turns them on."""
    group = parser.add_argument_group("platform", "serve sealed adapters for a platform: tickets, receipts, leases")
    group.add_argument("--platform-url", help="the platform's web process, as http(s)://host:port")
    group.add_argument("--advertise-url", help="where the platform reaches this replica, as http(s)://host:port")
    group.add_argument("--state-dir", type=Path, help="folder for the usage journal and sealed packages")
    group.add_argument("--replica-name", default="replica", help="stable across restarts; names the usage journal")
    group.add_argument("--credential-file", type=Path, help="file with this replica's credential; used once, to enrol")
    group.add_argument(
        "--allow-unlocked-memory",
        action="store_true",
        help="start even if the system's limit does not let weights be locked in RAM: they may then reach swap",
    )


def from_args(args: argparse.Namespace) -> PlatformConfig | None:
    """Return the settings, or None without --platform-url. Raises ConfigError with the flag's name."""
    if not args.platform_url:
        return None
    if args.state_dir is None:
        raise ConfigError("--state-dir is required with --platform-url: the usage journal must survive restarts")
    if not is_replica_name(args.replica_name):
        raise ConfigError("--replica-name: letters, digits, dots, dashes and underscores, at most 100")
    return PlatformConfig(
        platform_url=_origin("--platform-url", args.platform_url),
        advertise_url=_origin("--advertise-url", args.advertise_url),
        state_dir=args.state_dir,
        replica_name=args.replica_name,
        credential_file=args.credential_file,
        allow_unlocked_memory=args.allow_unlocked_memory,
    )


def _origin(flag: str, value: str | None) -> str:
    parts = urlsplit(value or "")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ConfigError(f"{flag} must be http://host:port or https://host:port")
    return str(value).rstrip("/")
