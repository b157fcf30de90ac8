"""Writes about replicas: challenges, registration, heartbeats, silence."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from django.db import transaction
from django.utils import timezone

from marketplace.catalog.models import BaseModel
from marketplace.vault.attestation import verify_evidence
from marketplace.vault.errors import BadRequest, NotEnrolled, SessionRefused
from marketplace.vault.models import Lease, Release, Replica, ReplicaChallenge
from marketplace.vault.policies import ENDED_STATES, release_allowed
from marketplace.vault.wire import Registration, canonical_json, check_replica_url, decode_bytes
from sealed_weights import SealError
from sealed_weights.signing import verify

CHALLENGE_SECONDS = 60
LEASE_SECONDS = 30
HEARTBEAT_SECONDS = 2
SILENT_SECONDS = 30
SIGNATURE_DOMAIN = b"intarsia/replica/v1"


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A registration that was accepted; the token is shown once, only its SHA-256 is stored."""

    replica: Replica
    session_token: str


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """`leases`: seconds left for each release that goes on. `revoked`: digests to refuse and zero at once."""

    leases: dict[str, int]
    revoked: list[str]


def issue_challenge() -> bytes:
    """Return a fresh 32-byte nonce, to be used once within a minute; older ones are forgotten."""
    ReplicaChallenge.objects.filter(created_at__lt=timezone.now() - timedelta(seconds=CHALLENGE_SECONDS)).delete()
    return bytes(ReplicaChallenge.objects.create(nonce=secrets.token_bytes(32)).nonce)


def register_replica(*, registration: Registration, signed_fields: Mapping[str, Any]) -> Enrolled:
    """Enrol one boot of a replica; older boots of the same name are gone from here on.

    `signed_fields` is the message as parsed JSON without `signature`. Raises NotEnrolled for a nonce, signature or
    evidence that does not hold, BadRequest for a url or key that may not be used.
    """
    check_replica_url(registration.url)
    nonce = decode_bytes(registration.nonce)
    receipt_key, hpke_key = decode_bytes(registration.receipt_public_key), decode_bytes(registration.hpke_public_key)
    _check_hpke_key(hpke_key)
    fresh_after = timezone.now() - timedelta(seconds=CHALLENGE_SECONDS)
    # The nonce is spent on its own, before anything else is looked at: a failed attempt spends it too.
    spent, _ = ReplicaChallenge.objects.filter(nonce=nonce, created_at__gte=fresh_after).delete()
    if not spent:
        raise NotEnrolled("the nonce is unknown, too old or used")
    message = SIGNATURE_DOMAIN + hashlib.sha256(canonical_json(dict(signed_fields))).digest()
    try:
        verify(receipt_key, decode_bytes(registration.signature), message, "registration")
    except SealError:
        raise NotEnrolled("the registration is not signed by its receipt key") from None
    verify_evidence(registration.evidence, nonce=nonce, hpke_public_key=hpke_key)
    token = secrets.token_urlsafe(32)
    with transaction.atomic():
        BaseModel.objects.get_or_create(
            fingerprint=registration.base.fingerprint,
            defaults={
                "name": registration.base.name,
                "config": registration.base.config,
                "context_length": registration.base.context_length,
            },
        )
        now = timezone.now()
        Replica.objects.filter(name=registration.name, gone_at__isnull=True).update(gone_at=now)
        replica = Replica.objects.create(
            name=registration.name,
            url=registration.url.rstrip("/"),
            base_fingerprint=registration.base.fingerprint,
            hpke_public_key=hpke_key,
            receipt_public_key=receipt_key,
            evidence=registration.evidence,
            session_digest=hashlib.sha256(token.encode()).digest(),
        )
    return Enrolled(replica, token)


def _check_hpke_key(public: bytes) -> None:
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise BadRequest("hpke_public_key is a low-order point: anyone could open leases to it") from None


def authenticate_session(token: str) -> Replica:
    """Return the living replica of a session token; raises SessionRefused."""
    digest = hashlib.sha256(token.encode()).digest()
    replica = Replica.objects.filter(session_digest=digest, gone_at__isnull=True).first()
    if replica is None:
        raise SessionRefused("no living replica has this session; register again")
    return replica


def record_heartbeat(*, replica: Replica, release_ids: Sequence[UUID], stats: Mapping[str, Any]) -> HeartbeatAnswer:
    """Note that `replica` lives and renew those of its leases that are still allowed.

    A lease that ran out or was revoked is never renewed: the replica must ask again, and that is logged again.
    """
    now = timezone.now()
    Replica.objects.filter(pk=replica.pk, gone_at__isnull=True).update(last_seen_at=now, stats=dict(stats))
    held = Release.objects.filter(pk__in=list(release_ids), replica=replica).select_related("version", "lease")
    renewed: list[UUID] = []
    revoked: set[str] = set()
    for release in held:
        if release.version.state in ENDED_STATES:
            revoked.add(release.digest)
        elif (
            release.lease.revoked_at is None
            and release.lease.expires_at > now
            and release_allowed(release.version.state, release.purpose)
        ):
            renewed.append(release.pk)
    if renewed:
        until = now + timedelta(seconds=LEASE_SECONDS)
        Lease.objects.filter(pk__in=renewed, revoked_at__isnull=True).update(expires_at=until)
    return HeartbeatAnswer({str(pk): LEASE_SECONDS for pk in renewed}, sorted(revoked))


def mark_silent_replicas() -> int:
    """Mark replicas gone that were silent for half a minute (their leases ran out on their own clock); return how
    many."""
    limit = timezone.now() - timedelta(seconds=SILENT_SECONDS)
    return Replica.objects.filter(gone_at__isnull=True, last_seen_at__lt=limit).update(gone_at=timezone.now())
