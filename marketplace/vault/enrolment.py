"""Writes about the boots of replicas: challenges, registration, heartbeats, silence."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from django.db import transaction
from django.utils import timezone

from marketplace.vault import fleets
from marketplace.vault.absences import welcome_back
from marketplace.vault.attestation import verify_evidence
from marketplace.vault.clearance import not_cleared
from marketplace.vault.errors import BadRequest, NotEnrolled, SessionRefused
from marketplace.vault.locks import lock_enrolled_replica
from marketplace.vault.models import EnrolledReplica, Lease, Release, Replica, ReplicaChallenge
from marketplace.vault.policies import ENDED_STATES, release_allowed
from protocol.encoding import decode_base64url
from protocol.replicas import LEASE_SECONDS, Registration, signed_message
from sealed_weights import SealError
from sealed_weights.signing import verify

CHALLENGE_SECONDS = 60
MAX_CHALLENGES = 16  # open ones of one replica
SILENT_SECONDS = 30
TOKEN_RATE = "tokens_per_second"  # beside a heartbeat's own figures


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


def issue_challenge(*, name: str) -> bytes:
    """Return a fresh 32-byte nonce for an enrolled replica, to be used once within a minute; older ones are forgotten.

    Raises NotEnrolled.
    """
    if not EnrolledReplica.objects.filter(
        name=name, identity_public_key__isnull=False, revoked_at__isnull=True
    ).exists():
        raise _unknown(name)
    ReplicaChallenge.objects.filter(created_at__lt=timezone.now() - timedelta(seconds=CHALLENGE_SECONDS)).delete()
    newest = ReplicaChallenge.objects.filter(name=name).order_by("-created_at").values("pk")[: MAX_CHALLENGES - 1]
    ReplicaChallenge.objects.filter(name=name).exclude(pk__in=newest).delete()
    return bytes(ReplicaChallenge.objects.create(nonce=secrets.token_bytes(32), name=name).nonce)


def register_replica(*, registration: Registration) -> Enrolled:
    """Register one boot of an enrolled replica; older boots of the same identity are gone from here on.

    Raises NotEnrolled for a name, nonce, signature, base, host or evidence that is not what staff allowed, BadRequest
    for a url or key that may not be used.
    """
    receipt_key = decode_base64url(registration.receipt_public_key)
    hpke_key = decode_base64url(registration.hpke_public_key)
    _check_hpke_key(hpke_key)
    nonce = _spend_nonce(registration)
    try:
        verify(receipt_key, decode_base64url(registration.signature), signed_message(registration), "registration")
    except SealError:
        raise NotEnrolled("the registration is not signed by its receipt key") from None
    token = secrets.token_urlsafe(32)
    with transaction.atomic():
        fleets.admit_boot(registration.name)
        known = lock_enrolled_replica(registration.name)
        if known is None or known.identity_public_key is None or known.revoked_at is not None:
            raise _unknown(registration.name)
        _check_terms(known, registration, nonce=nonce, hpke_key=hpke_key)
        url = fleets.origin_of(known, registration.url)
        transfer_url = _transfer_url(known, registration)
        Replica.objects.filter(name=known.name, gone_at__isnull=True).update(gone_at=timezone.now())
        replica = Replica.objects.create(
            name=known.name,
            url=url,
            base_fingerprint=registration.base,
            hpke_public_key=hpke_key,
            receipt_public_key=receipt_key,
            evidence=registration.evidence,
            session_digest=hashlib.sha256(token.encode()).digest(),
            role=registration.role,
            transfer_url=transfer_url,
        )
        welcome_back(name=known.name)
    return Enrolled(replica, token)


def _spend_nonce(registration: Registration) -> bytes:
    """Spend the nonce on its own, before anything else is looked at: a failed attempt spends it too."""
    nonce = decode_base64url(registration.nonce)
    fresh_after = timezone.now() - timedelta(seconds=CHALLENGE_SECONDS)
    challenges = ReplicaChallenge.objects.filter(nonce=nonce, name=registration.name, created_at__gte=fresh_after)
    spent, _ = challenges.delete()
    if not spent:
        raise NotEnrolled("the nonce is unknown, too old or used")
    return nonce


def _check_terms(known: EnrolledReplica, registration: Registration, *, nonce: bytes, hpke_key: bytes) -> None:
    identity = bytes(known.identity_public_key or b"")
    try:
        verify(identity, decode_base64url(registration.identity_signature), signed_message(registration), "identity")
    except SealError:
        raise NotEnrolled("the registration is not signed by the replica's identity") from None
    if registration.base != known.base_model.fingerprint:
        raise NotEnrolled(
            f"this replica may serve {known.base_model.name}, and has loaded another base model, or computes it in "
            "another precision (--dtype, --kv-dtype, --adapter-dtype): add that as a checkpoint (add_base_model)"
        )
    verify_evidence(registration.evidence, nonce=nonce, hpke_public_key=hpke_key)
    if known.builds and registration.evidence.get("digest") not in known.builds:
        raise NotEnrolled("this build of the serving program is not one that staff allowed for this replica")


def _transfer_url(known: EnrolledReplica, registration: Registration) -> str:
    """Return where other replicas may pull KV: on the host that staff named, in the networks of replicas."""
    if registration.transfer_url:
        return fleets.origin_of(known, registration.transfer_url)
    if registration.role == Replica.Role.PREFILL:
        raise BadRequest("a replica that computes prompts for others must say where they pull its KV (transfer_url)")
    return ""


def _unknown(name: str) -> NotEnrolled:
    return NotEnrolled(f"no replica called {name} is enrolled; staff issue credentials (issue_replica_credential)")


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
    figures = {**stats, TOKEN_RATE: _token_rate(replica, stats, now)}
    Replica.objects.filter(pk=replica.pk, gone_at__isnull=True).update(last_seen_at=now, stats=figures)
    held = Release.objects.filter(pk__in=list(release_ids), replica=replica).select_related(
        "version__model__base_model", "lease"
    )
    barred = not_cleared(versions=[release.version for release in held], replica=replica)
    renewed: list[UUID] = []
    revoked: set[str] = set()
    for release in held:
        if release.version.state in ENDED_STATES:
            revoked.add(release.digest)
        elif (
            release.lease.revoked_at is None
            and release.lease.expires_at > now
            and release_allowed(release.version.state, release.purpose)
            and release.version_id not in barred
        ):
            renewed.append(release.pk)
    if renewed:
        until = now + timedelta(seconds=LEASE_SECONDS)
        Lease.objects.filter(pk__in=renewed, revoked_at__isnull=True).update(expires_at=until)
    return Renewal({str(pk): LEASE_SECONDS for pk in renewed}, sorted(revoked))


def _token_rate(before: Replica, stats: Mapping[str, Any], now: datetime) -> float:
    """Return the tokens a second since the heartbeat before this one; a replica's figures may be any JSON."""
    now_done, before_done = _tokens(stats), _tokens(before.stats)
    seconds = (now - before.last_seen_at).total_seconds()
    if now_done is None or before_done is None or seconds <= 0:
        return 0.0
    return round(max(0, now_done - before_done) / seconds, 1)


def _tokens(stats: Mapping[str, Any]) -> int | None:
    generated, prompt = stats.get("generated_tokens"), stats.get("prompt_tokens")
    return generated + prompt if isinstance(generated, int) and isinstance(prompt, int) else None


def mark_silent_replicas() -> int:
    """Mark replicas gone that were silent for half a minute (their leases ran out on their own clock); return how
    many."""
    limit = timezone.now() - timedelta(seconds=SILENT_SECONDS)
    return Replica.objects.filter(gone_at__isnull=True, last_seen_at__lt=limit).update(gone_at=timezone.now())
