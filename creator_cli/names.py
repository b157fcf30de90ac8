"""Names that people type: platform URLs, `org/slug`, `org/slug@3`, amounts of money."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from urllib.parse import urlsplit

from creator_cli.errors import Refused
from protocol import names
from protocol.errors import ProtocolError
from protocol.names import ModelName


@dataclass(frozen=True, slots=True)
class VersionName:
    """`org/slug@3`."""

    model: ModelName
    number: int

    def __str__(self) -> str:
        return f"{self.model}@{self.number}"


def parse_model_name(text: str) -> ModelName:
    """Read `org/slug`; raises Refused."""
    found = _parsed(text)
    if found is None or found.version is not None:
        raise Refused(f"{text!r} is not a model; write org/slug, for example acme/triage", field="model")
    return found


def parse_version_name(text: str) -> VersionName:
    """Read `org/slug@N`; raises Refused."""
    found = _parsed(text)
    if found is None or found.version is None:
        raise Refused(f"{text!r} is not a version; write org/slug@N, for example acme/triage@3", field="version")
    return VersionName(ModelName(found.organization, found.slug), found.version)


def _parsed(text: str) -> ModelName | None:
    try:
        return names.parse_model_name(text)
    except ProtocolError:
        return None


def parse_platform_url(text: str) -> str:
    """Return the URL without a trailing slash. Raises Refused for one that would send the token in the clear."""
    parts = urlsplit(text if "://" in text else f"https://{text}")
    try:
        port = parts.port
    except ValueError:
        raise Refused(f"{text}: the port is not a number below 65536", field="url") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise Refused("the URL must look like https://intarsia.example", field="url")
    if parts.query or parts.fragment:
        raise Refused("the URL must end after the path", field="url")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise Refused(
            f"http://{parts.hostname} would send your token unencrypted: use https:// (plain http is for loopback)",
            field="url",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path.rstrip('/')}"


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_dollars(text: str, *, decimals: int, field: str) -> int:
    """Dollars as an integer of 10^-`decimals` dollars, exactly; raises Refused when there are more decimals."""
    try:
        amount = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise Refused(f"{text!r} is not an amount in dollars", field=field) from None
    if not amount.is_finite() or not 0 <= amount < 10**9:
        raise Refused("an amount must be 0 or more dollars", field=field)
    scaled = amount.scaleb(decimals)
    if scaled != scaled.to_integral_value():
        raise Refused(f"an amount may have {decimals} decimals", field=field)
    return int(scaled)


def parse_multiplier(text: str, *, field: str) -> int:
    """Read how many times as much as standard something costs, as basis points: "1.5" is 15,000. Raises Refused."""
    try:
        scaled = Decimal(text).scaleb(4)
    except InvalidOperation:
        raise Refused(f"{text!r} is not a multiplier such as 1.5", field=field) from None
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or not 100 <= scaled <= 100_000:
        raise Refused("a multiplier must be from 0.01 to 10, with at most four decimals", field=field)
    return int(scaled)


def parse_time(text: str, *, field: str) -> datetime:
    """Read a day or an instant; without an offset it is UTC. Raises Refused."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(f"{text!r} is not a time such as 2027-01-01 or 2027-01-01T12:00", field=field) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
