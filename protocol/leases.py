"""Keys on loan: a replica asks for the keys of packages, up to 32 in one call."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from protocol.messages import Answer, Digest, ErrorBody, Request

LEASES_PATH = "leases"
MAX_LEASES = 32  # of one call

Purpose = Literal["serve", "verify"]


class LeaseRequest(Request, frozen=True):
    """A replica asks for the keys of packages."""

    digests: Annotated[list[Digest], msgspec.Meta(min_length=1, max_length=MAX_LEASES)]
    purpose: Purpose


class PackageIdentity(Answer, frozen=True):
    """The identity that the package of a lease must state."""

    creator_id: UUID
    model_id: UUID
    version: int
    base: Digest  # of the reference that the adapter was made for; the replica may serve another checkpoint of its line


class KeyOnLoan(Answer, frozen=True):
    """A sealed lease (docs/package-format.md) and what is needed to open its package, `package_size` bytes long."""

    lease: dict[str, Any]
    creator_public_key: str
    identity: PackageIdentity
    package_size: int


class Lent(Answer, frozen=True):
    """The answer for one package: its key, or why it is refused."""

    key: KeyOnLoan | None
    refusal: ErrorBody | None


class LeaseAnswer(Answer, frozen=True):
    """The answers for the packages, in the order of the request."""

    lent: list[Lent]
