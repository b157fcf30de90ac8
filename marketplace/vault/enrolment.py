"""Writes about the boots of replicas: challenges, registration, silence."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from django.db import transaction
from django.utils import timezone

from marketplace.vault import fleets
from marketplace.vault.absences import welcome_back
from marketplace.vault.attestation import verify_evidence
from marketplace.vault.errors import BadRequest, NameInUse, NotEnrolled, SessionRefused
from marketplace.vault.locks import lock_enrolled_replica
from marketplace.vault.models import EnrolledReplica, Replica, ReplicaChallenge
from protocol.encoding import decode_base64url
from protocol.replicas import Registration, signed_message
from sealed_weights import SealError
from sealed_weights.signing import verify

CHALLENGE_SECONDS = 60
MAX_CHALLENGES = 16  # open ones of one replica
SILENT_SECONDS = 30
# A boot whose session was heard of this lately is there, unless it has left: another one of its name is refused.
PRESENT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A registration that was accepted; the token is shown once, only its SHA-256 is stored."""

    replica: Replica
    session_token: str


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

    Raises NotEnrolled for a name, nonce, signature, base, host or evidence that is not what staff allowed, NameInUse
    while another boot of the name is there, BadRequest for a url or key that may not be used.
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
        _take_name(known.name, receipt_key)
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


def _take_name(name: str, receipt_key: bytes) -> None:
    """Note that older boots of the name are gone. Raises NameInUse while one of them is there.

    A boot that died has left: the system closed its link, and the gateway said so. One whose machine went dark is heard
    of no more. So a restart waits five seconds at most, and two processes with one identity do not take the name from
    each other for ever. A boot that registers again, by the same receipt key, is the one that is there.
    """
    now = timezone.now()
    boots = Replica.objects.filter(name=name, gone_at__isnull=True)
    present = boots.filter(left_at=None, last_seen_at__gt=now - timedelta(seconds=PRESENT_SECONDS))
    if present.exclude(receipt_public_key=receipt_key).exists():
        raise NameInUse(
            f"a replica called {name} is there; it must stop, or be silent for {PRESENT_SECONDS:.0f} s, before another "
            "boot takes the name"
        )
    boots.update(gone_at=now)


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


def mark_silent_replicas() -> int:
    """Mark replicas gone that were silent for half a minute (their leases ran out on their own clock); return how
    many."""
    limit = timezone.now() - timedelta(seconds=SILENT_SECONDS)
    return Replica.objects.filter(gone_at__isnull=True, last_seen_at__lt=limit).update(gone_at=timezone.now())
