"""Keys on loan: a replica asks for the key of one package."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from protocol.messages import Answer, Digest, Request

LEASES_PATH = "leases"

Purpose = Literal["serve", "verify"]


class LeaseRequest(Request, frozen=True):
    """A replica asks for the key of one package."""

    digest: Digest
    purpose: Purpose


class PackageIdentity(Answer, frozen=True):
    """The identity that the package of a lease must state."""

    creator_id: UUID
    model_id: UUID
    version: int
    base: Digest  # of the reference that the adapter was made for; the replica may serve another checkpoint of its line


class LeaseAnswer(Answer, frozen=True):
    """A sealed lease (docs/package-format.md) and what is needed to open its package, `package_size` bytes long."""

    lease: dict[str, Any]
    creator_public_key: str
    identity: PackageIdentity
    package_size: int
