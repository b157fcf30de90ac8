"""Writes of staff about the replicas they allow, and the one trade of a credential for an identity."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from marketplace.accounts.errors import Conflict
from marketplace.catalog.models import BaseModel
from marketplace.vault.errors import NotEnrolled
from marketplace.vault.locks import lock_enrolled_replica
from marketplace.vault.models import EnrolledReplica, Lease, Replica
from protocol.encoding import decode_base64url
from protocol.replicas import EnrolmentRequest, enrolment_message
from sealed_weights import SealError
from sealed_weights.signing import verify

DEFAULT_RELEASES_PER_HOUR = 2_000  # a replica that swaps an adapter every two seconds stays below
DEFAULT_CREDENTIAL_SECONDS = 3600
_PREFIX = "irc_"


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions under which a replica may register. `builds` empty: any build; a URL's host must be `host`."""

    base_model: BaseModel
    host: str
    builds: Sequence[str] = ()
    releases_per_hour: int = DEFAULT_RELEASES_PER_HOUR


def issue_credential(*, name: str, terms: Terms, seconds: int = DEFAULT_CREDENTIAL_SECONDS) -> str:
    """Allow a replica and return its credential, which is shown once and good for one trade within `seconds`.

    A name that is enrolled keeps its identity until it is revoked: raises Conflict.
    """
    credential = _PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        known = lock_enrolled_replica(name)
        if known is not None and known.identity_public_key is not None and known.revoked_at is None:
            raise Conflict(
                f"{name} is enrolled; revoke it first (revoke_replica) to let another machine take the name",
                code="replica_enrolled",
            )
        EnrolledReplica.objects.update_or_create(
            name=name,
            defaults={
                "fleet": None,
                "base_model": terms.base_model,
                "host": terms.host.lower(),
                "builds": list(terms.builds),
                "releases_per_hour": terms.releases_per_hour,
                "credential_digest": hashlib.sha256(credential.encode()).digest(),
                "credential_expires_at": timezone.now() + timedelta(seconds=seconds),
                "identity_public_key": None,
                "enrolled_at": None,
                "revoked_at": None,
                "drained_at": None,
            },
        )
    return credential


def enrol_replica(*, request: EnrolmentRequest) -> None:
    """Trade a credential for an identity. Repeating an accepted trade with the same identity changes nothing.

    Raises NotEnrolled, with one text for an unknown name, a wrong, an expired and a spent credential.
    """
    public_key = signing_identity(request)
    shown = hashlib.sha256(request.credential.encode()).digest()
    with transaction.atomic():
        known = lock_enrolled_replica(request.name)
        if (
            known is None
            or known.revoked_at is not None
            or not hmac.compare_digest(shown, bytes(known.credential_digest))
        ):
            raise _refused()
        if known.identity_public_key is not None:
            if hmac.compare_digest(bytes(known.identity_public_key), public_key):
                return
            raise _refused()
        if known.credential_expires_at <= timezone.now():
            raise _refused()
        known.identity_public_key, known.enrolled_at = public_key, timezone.now()
        known.save(update_fields=["identity_public_key", "enrolled_at"])


def signing_identity(request: EnrolmentRequest) -> bytes:
    """Return the public key that the request names and that signed it. Raises NotEnrolled."""
    public_key = decode_base64url(request.identity_public_key)
    message = enrolment_message(
        name=request.name, credential=request.credential, identity_public_key=request.identity_public_key
    )
    try:
        verify(public_key, decode_base64url(request.signature), message, "enrolment")
    except SealError:
        raise NotEnrolled("the enrolment is not signed by its identity") from None
    return public_key


def _refused() -> NotEnrolled:
    return NotEnrolled("the credential is unknown, spent or expired; staff can issue another")


def change_replica(*, name: str, terms: Terms) -> EnrolledReplica:
    """Set other terms, which hold from the next registration on (the budget at once). Raises NotEnrolled."""
    with transaction.atomic():
        known = _known(name)
        known.base_model, known.host, known.builds = terms.base_model, terms.host.lower(), list(terms.builds)
        known.releases_per_hour = terms.releases_per_hour
        known.save(update_fields=["base_model", "host", "builds", "releases_per_hour"])
    return known


def revoke_replica(*, name: str) -> int:
    """End a replica: its identity, its living boots and their leases; return how many leases ended.

    The replica drops what it holds at its next heartbeat, or when its leases run out. Raises NotEnrolled.
    """
    now = timezone.now()
    with transaction.atomic():
        known = _known(name)
        known.revoked_at = known.revoked_at or now
        known.save(update_fields=["revoked_at"])
        Replica.objects.filter(name=name, gone_at__isnull=True).update(gone_at=now)
        return Lease.objects.live(now).filter(release__replica__name=name).update(revoked_at=now)


def drain_replica(*, name: str) -> EnrolledReplica:
    """Send the replica no new work; gateways follow within 2 s, and what runs there ends as ever. Idempotent.

    It holds for later boots of the name too, until `undrain_replica`. Raises NotEnrolled.
    """
    with transaction.atomic():
        known = _known(name)
        known.drained_at = known.drained_at or timezone.now()
        known.save(update_fields=["drained_at"])
    return known


def undrain_replica(*, name: str) -> EnrolledReplica:
    """Send the replica new work again. Idempotent. Raises NotEnrolled."""
    with transaction.atomic():
        known = _known(name)
        known.drained_at = None
        known.save(update_fields=["drained_at"])
    return known


def _known(name: str) -> EnrolledReplica:
    known = lock_enrolled_replica(name)
    if known is None:
        raise NotEnrolled(f"no replica is called {name}; see list_replicas")
    return known
