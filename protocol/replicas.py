"""A replica and the vault: enrolment, challenge, registration, heartbeat; JSON over `/internal/v1/` of the web process.

Staff issue a credential for one replica. The replica trades it, once, for its identity: a key pair whose private half
stays in its state folder. Every boot then registers with a signature of that identity.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any
from uuid import UUID

import msgspec

from protocol.admin import MAX_JOURNAL_KEYS, JournalKey
from protocol.encoding import canonical_json, decode_base64url, encode_base64url
from protocol.errors import ProtocolError
from protocol.messages import (
    Answer,
    Attempt,
    Bytes32,
    Bytes64,
    Digest,
    Id,
    ReplicaName,
    Request,
    decode,
    to_fields,
)
from protocol.pulls import PullUrl, Role
from protocol.version import PROTOCOL_VERSION, UNVERSIONED, require_version

INTERNAL_PATH = "/internal/v1/"
ENROL_PATH = "replicas/enrolment"
CHALLENGE_PATH = "replicas/challenge"
REGISTER_PATH = "replicas"
HEARTBEAT_PATH = "replicas/{replica_id}/heartbeat"
GOODBYE_PATH = "replicas/{replica_id}/goodbye"
HAND_OVER_PATH = "replicas/{replica_id}/hand-over"

HEARTBEAT_SECONDS = 2
LEASE_SECONDS = 30
_DOMAIN = b"intarsia/replica/v1"
_ENROLMENT_DOMAIN = b"intarsia/enrolment/v1"


class EnrolmentRequest(Request, frozen=True, kw_only=True):
    """A replica trades its credential for an identity. The signature, by the identity, covers the other fields."""

    protocol_version: int
    name: ReplicaName
    credential: Annotated[str, msgspec.Meta(min_length=20, max_length=200)]
    identity_public_key: Bytes32
    signature: Bytes64

    def __repr__(self) -> str:
        """Return the name alone: a credential is a secret."""
        return f"EnrolmentRequest({self.name})"


class EnrolmentAnswer(Answer, frozen=True):
    """The identity is the replica's from here on. Repeating the request with the same identity changes nothing."""

    name: ReplicaName


class ChallengeRequest(Request, frozen=True):
    """Ask for a nonce for one enrolled replica."""

    name: ReplicaName


class Challenge(Answer, frozen=True):
    """A nonce of 32 bytes in base64url, good once within 60 s."""

    nonce: Bytes32


class Introduction(Request, frozen=True, kw_only=True):
    """A replica's description of itself, which its receipt key signs. `base` is the fingerprint of its base model.

    role: whether it answers whole predictions, computes prompts for others, or prefers prompts computed by others
    transfer_url: where other replicas pull KV from it over TLS; empty: nowhere
    """

    protocol_version: int
    name: ReplicaName
    url: Annotated[str, msgspec.Meta(max_length=200)]
    base: Digest
    hpke_public_key: Bytes32
    receipt_public_key: Bytes32
    nonce: Bytes32
    evidence: dict[str, Any]
    role: Role
    transfer_url: PullUrl


class Registration(Introduction, frozen=True, kw_only=True):
    """An introduction, signed by the boot's receipt key and by the replica's identity. All bytes are base64url."""

    signature: Bytes64
    identity_signature: Bytes64


class Registered(Answer, frozen=True, kw_only=True):
    """This boot's identity towards the platform. `session_token` is shown once."""

    protocol_version: int = UNVERSIONED
    replica_id: UUID
    session_token: str
    vault_public_key: str
    ticket_keys: dict[str, str]
    heartbeat_seconds: float
    lease_seconds: float

    def __repr__(self) -> str:
        """Return everything but the token."""
        return f"Registered({self.replica_id})"


class Heartbeat(Request, frozen=True):
    """A replica lives. `returned` are the leases that it gave back; all others of its session go on.

    It comes from replicas without a fleet link, which says the same.
    """

    stats: dict[str, Any]
    returned: Annotated[list[UUID], msgspec.Meta(max_length=1_000)]


class HeartbeatAnswer(Answer, frozen=True):
    """The session lives on. Digests withdrawn for good, leases that are over, the current ticket keys."""

    revoked: list[str]
    ended: list[str]
    ticket_keys: dict[str, str]


class LastWord(Request, frozen=True):
    """What a replica's journal says of one attempt as the replica leaves; no receipt: it does not know of it."""

    jti: Id
    attempt: Attempt
    receipt: Annotated[str, msgspec.Meta(max_length=4096)] | None


class GoodBye(Request, frozen=True):
    """A replica leaves for good: nothing runs there and every receipt is on its disk."""

    words: Annotated[list[LastWord], msgspec.Meta(max_length=MAX_JOURNAL_KEYS)]


class GoodByeAnswer(Answer, frozen=True):
    """Retired: the name is not asked until it registers again. Else the attempts whose last word is still owed."""

    retired: bool
    owed: list[JournalKey]


class HandOverAnswer(Answer, frozen=True):
    """Whether the conversations of a replica that drains are handed over: once for each boot, where others can pull."""

    taken: bool


class _Versioned(Answer, frozen=True):
    protocol_version: int = UNVERSIONED


def read_registration(body: bytes) -> Registration:
    """Parse a registration, the version first: raises VersionMismatch, which names both, or ProtocolError."""
    require_version(decode(body, _Versioned).protocol_version, sender="the replica", receiver="this platform")
    return decode(body, Registration)


def signed_message(introduction: Introduction) -> bytes:
    """Return what both signatures of a registration cover: a domain and SHA-256 of the other fields' canonical JSON."""
    fields = to_fields(introduction)
    fields.pop("signature", None)
    fields.pop("identity_signature", None)
    return _DOMAIN + hashlib.sha256(canonical_json(fields)).digest()


def enrolment_message(*, name: str, credential: str, identity_public_key: str) -> bytes:
    """Return what the signature of an enrolment covers: a domain and SHA-256 of the fields' canonical JSON."""
    fields = {"credential": credential, "identity_public_key": identity_public_key, "name": name}
    return _ENROLMENT_DOMAIN + hashlib.sha256(canonical_json(fields)).digest()


def read_enrolment(body: bytes) -> EnrolmentRequest:
    """Parse an enrolment, the version first: raises VersionMismatch, which names both, or ProtocolError."""
    require_version(decode(body, _Versioned).protocol_version, sender="the replica", receiver="this platform")
    return decode(body, EnrolmentRequest)


def encode_keys(keys: dict[str, bytes]) -> dict[str, str]:
    """Return {kid: public key in base64url}."""
    return {kid: encode_base64url(public) for kid, public in keys.items()}


def decode_keys(keys: dict[str, str]) -> dict[str, bytes]:
    """Parse {kid: public key}; raises ProtocolError unless every key has 32 bytes."""
    decoded = {kid: decode_base64url(text) for kid, text in keys.items()}
    if any(len(key) != 32 for key in decoded.values()):
        raise ProtocolError("a ticket key must have 32 bytes")
    return decoded


def read_registered(body: bytes) -> Registered:
    """Parse the answer to a registration, the version first: raises VersionMismatch or ProtocolError."""
    require_version(decode(body, _Versioned).protocol_version, sender="the platform", receiver="this replica")
    return decode(body, Registered)


__all__ = [
    "CHALLENGE_PATH",
    "ENROL_PATH",
    "GOODBYE_PATH",
    "HEARTBEAT_PATH",
    "HEARTBEAT_SECONDS",
    "INTERNAL_PATH",
    "LEASE_SECONDS",
    "PROTOCOL_VERSION",
    "REGISTER_PATH",
    "Challenge",
    "ChallengeRequest",
    "EnrolmentAnswer",
    "EnrolmentRequest",
    "GoodBye",
    "GoodByeAnswer",
    "Heartbeat",
    "HeartbeatAnswer",
    "Introduction",
    "LastWord",
    "Registered",
    "Registration",
    "decode_keys",
    "encode_keys",
    "enrolment_message",
    "read_enrolment",
    "read_registered",
    "read_registration",
    "signed_message",
]
