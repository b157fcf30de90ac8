"""Names: organizations and models, versions of models, replicas, packages. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.errors import ProtocolError

SLUG = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"
REPLICA_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
DIGEST = r"[0-9a-f]{64}"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

# As JSON Schema writes them. In Python `$` also matches before a line feed at the end: match with `fullmatch` or `\Z`.
SLUG_PATTERN = rf"^{SLUG}$"
DIGEST_PATTERN = rf"^{DIGEST}$"

_MODEL = re.compile(rf"({SLUG})/({SLUG})(?:@([1-9][0-9]{{0,5}}))?", re.ASCII)
_REPLICA = re.compile(REPLICA_NAME, re.ASCII)
_DIGEST = re.compile(DIGEST, re.ASCII)
_POOL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)
_NODE = re.compile(r"[a-z0-9]{1,40}", re.ASCII)
_FLEET = re.compile(rf"({_POOL.pattern})-({_NODE.pattern})-(0|[1-9][0-9]{{0,3}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelName:
    """`org/slug`, or `org/slug@3` for one version of it."""

    organization: str
    slug: str
    version: int | None = None

    def __str__(self) -> str:
        return self.listing + (f"@{self.version}" if self.version else "")

    @property
    def listing(self) -> str:
        """Return `org/slug`: the name without its version."""
        return f"{self.organization}/{self.slug}"


def parse_model_name(text: object) -> ModelName:
    """Read `org/slug` or `org/slug@3`; raises ProtocolError."""
    found = _MODEL.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ProtocolError("a model is named org/slug or org/slug@version")
    return ModelName(found[1], found[2], int(found[3]) if found[3] else None)


def is_replica_name(text: str) -> bool:
    """Return whether a replica may have this name: letters, digits, dots, dashes and underscores, at most 100."""
    return _REPLICA.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class FleetName:
    """The name of a replica of a fleet: `pool-node-slot`. Only pools may hold dashes: a name has one reading."""

    pool: str
    node: str
    slot: int

    def __str__(self) -> str:
        return f"{self.pool}-{self.node}-{self.slot}"


def parse_fleet_name(text: str) -> FleetName:
    """Read `pool-node-slot`; raises ProtocolError."""
    found = _FLEET.fullmatch(text)
    if found is None:
        raise ProtocolError("a replica of a fleet is named POOL-NODE-SLOT")
    return FleetName(found[1], found[2], int(found[3]))


def is_pool_name(text: str) -> bool:
    """Return whether a pool may have this name: lower-case letters, digits and inner dashes, at most 40."""
    return _POOL.fullmatch(text) is not None


def is_node_name(text: str) -> bool:
    """Return whether a node may have this name: lower-case letters and digits, at most 40."""
    return _NODE.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Return whether `text` is a SHA-256 digest in 64 lower-case hex digits, as packages and bases are named."""
    return _DIGEST.fullmatch(text) is not None
