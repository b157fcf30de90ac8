"""Writes about replicas: challenges, registration, heartbeats, silence."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from django.db import transaction
from django.utils import timezone

from marketplace.catalog.models import BaseModel
from marketplace.vault.attestation import verify_evidence
from marketplace.vault.errors import BadRequest, NotEnrolled, SessionRefused
from marketplace.vault.models import Lease, Release, Replica, ReplicaChallenge
from marketplace.vault.policies import ENDED_STATES, release_allowed
from protocol.encoding import decode_base64url
from protocol.errors import ProtocolError
from protocol.replicas import LEASE_SECONDS, Registration, signed_message
from sealed_weights import SealError
from sealed_weights.signing import verify

CHALLENGE_SECONDS = 60
SILENT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A registration that was accepted; the token is shown once, only its SHA-256 is stored."""

    replica: Replica
    session_token: str


@dataclass(frozen=True, slots=True)
class Renewal:
    """`leases`: seconds left for each release that goes on. `revoked`: digests to refuse and zero at once."""

    leases: dict[str, float]
    revoked: list[str]


def issue_challenge() -> bytes:
    """Return a fresh 32-byte nonce, to be used once within a minute; older ones are forgotten."""
    ReplicaChallenge.objects.filter(created_at__lt=timezone.now() - timedelta(seconds=CHALLENGE_SECONDS)).delete()
    return bytes(ReplicaChallenge.objects.create(nonce=secrets.token_bytes(32)).nonce)


def register_replica(*, registration: Registration) -> Enrolled:
    """Enrol one boot of a replica; older boots of the same name are gone from here on.

    Raises NotEnrolled for a nonce, signature or
    evidence that does not hold, BadRequest for a url or key that may not be used.
    """
    _check_replica_url(registration.url)
    try:
        nonce = decode_base64url(registration.nonce)
        receipt_key = decode_base64url(registration.receipt_public_key)
        hpke_key = decode_base64url(registration.hpke_public_key)
        signature = decode_base64url(registration.signature)
    except ProtocolError as error:
        raise BadRequest(str(error)) from None
    _check_hpke_key(hpke_key)
    fresh_after = timezone.now() - timedelta(seconds=CHALLENGE_SECONDS)
    # The nonce is spent on its own, before anything else is looked at: a failed attempt spends it too.
    spent, _ = ReplicaChallenge.objects.filter(nonce=nonce, created_at__gte=fresh_after).delete()
    if not spent:
        raise NotEnrolled("the nonce is unknown, too old or used")
    try:
        verify(receipt_key, signature, signed_message(registration), "registration")
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


def _check_replica_url(url: str) -> None:
    """Raise BadRequest unless `url` is a plain http(s) origin that the gateway may call."""
    try:
        parts = urlsplit(url)
        callable_host = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
        beside_it = parts.username is not None or parts.path not in {"", "/"} or bool(parts.query or parts.fragment)
    except ValueError:
        callable_host = beside_it = False
    if not callable_host or beside_it:
        raise BadRequest("url must be http://host:port or https://host:port, without a path")


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


def record_heartbeat(*, replica: Replica, release_ids: Sequence[UUID], stats: Mapping[str, Any]) -> Renewal:
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
    return Renewal({str(pk): LEASE_SECONDS for pk in renewed}, sorted(revoked))


def mark_silent_replicas() -> int:
    """Mark replicas gone that were silent for half a minute (their leases ran out on their own clock); return how
    many."""
    limit = timezone.now() - timedelta(seconds=SILENT_SECONDS)
    return Replica.objects.filter(gone_at__isnull=True, last_seen_at__lt=limit).update(gone_at=timezone.now())
