"""A replica's settings towards the platform; flags are made from the fields, as in serving.config."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

from protocol.names import is_replica_name
from protocol.origins import parse_origins
from protocol.pulls import Role
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
    package_origins: frozenset[str] = frozenset()
    role: Role = "both"
    transfer_url: str | None = None
    transfer_host: str = "127.0.0.1"
    shared_credential: bool = False

    @property
    def transfer_port(self) -> int | None:
        """Return the port on which other replicas pull KV; None: on none."""
        return None if self.transfer_url is None else urlsplit(self.transfer_url).port

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
        "--package-origins",
        default="",
        help="where the platform's blob store is, as https://host[:port],…; empty: packages come from the platform",
    )
    group.add_argument(
        "--allow-unlocked-memory",
        action="store_true",
        help="start even if the system's limit does not let weights be locked in RAM: they may then reach swap",
    )
    group.add_argument(
        "--role",
        choices=get_args(Role),
        default="both",
        help="prefill: compute prompts for decode replicas to pull; decode: pull them; both: whole predictions",
    )
    group.add_argument(
        "--transfer-url", help="where other replicas pull KV from this one, as https://host:port; its port is opened"
    )
    group.add_argument("--transfer-host", default="127.0.0.1", help="address on which that port listens")


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
        package_origins=_origins("--package-origins", args.package_origins),
        role=args.role,
        transfer_url=_transfer_url(args.transfer_url, args.role),
        transfer_host=args.transfer_host,
    )


def _transfer_url(value: str | None, role: Role) -> str | None:
    if value is None:
        if role == "prefill":
            raise ConfigError("--transfer-url is required with --role prefill: decode replicas pull its KV there")
        return None
    origin = _origin("--transfer-url", value)
    if not origin.startswith("https://") or urlsplit(origin).port is None:
        raise ConfigError("--transfer-url must be https://host:port")
    return origin


def _origin(flag: str, value: str | None) -> str:
    parts = urlsplit(value or "")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ConfigError(f"{flag} must be http://host:port or https://host:port")
    return str(value).rstrip("/")


def _origins(flag: str, value: str) -> frozenset[str]:
    try:
        return parse_origins(value)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}; separate several with commas") from None
