"""Fleets: one credential lets the replicas of a pool enrol themselves, under names that they claim and within bounds.

A name is `pool-node-slot` (`protocol.names`). The credential is one secret of all nodes of a pool: it enrols names of
this pool alone, of one base model, at addresses of one network, and no more at once than staff allowed. It ends, with
every name that it enrolled, by one act.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from datetime import timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from marketplace.vault.addresses import Network, checked_origin
from marketplace.vault.errors import BadRequest, NotEnrolled
from marketplace.vault.identities import Terms, signing_identity
from marketplace.vault.locks import lock_enrolled_replica, lock_fleet_credential
from marketplace.vault.models import EnrolledReplica, FleetCredential, Lease, Replica
from protocol.errors import ProtocolError
from protocol.names import is_pool_name, parse_fleet_name
from protocol.replicas import EnrolmentRequest

PREFIX = "ifc_"
MAX_REPLICAS = 10_000
MAX_NAMES = 20_000  # that one credential enrols over time; a pool that is used up is revoked and issued again
# A replica that died keeps its place among the allowed ones for so long after its last heartbeat, so that its successor
# finds it; one that enrolled has so long to register.
_PLACE_SECONDS, _FIRST_BOOT_SECONDS = 30, 600


def issue_fleet_credential(*, pool: str, terms: Terms, replicas: int) -> str:
    """Allow a pool and return its credential, shown once. `terms.host` is a network, such as 10.0.0.0/8.

    For a pool that exists it sets other terms and another credential: the one before is good for no new name from here
    on, names that it enrolled stay. Raises BadRequest.
    """
    if not is_pool_name(pool):
        raise BadRequest("a pool's name has lower-case letters, digits and inner dashes, at most 40")
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadRequest(f"a pool has between one and {MAX_REPLICAS} replicas")
    network, credential = _network(terms.host), PREFIX + secrets.token_urlsafe(32)
    row = {"base_model": terms.base_model, "builds": list(terms.builds), "releases_per_hour": terms.releases_per_hour}
    with transaction.atomic():
        lock_fleet_credential(pool)
        FleetCredential.objects.update_or_create(
            pool=pool,
            defaults={
                **row,
                "network": str(network),
                "replicas": replicas,
                "credential_digest": _digest(credential),
                "issued_at": timezone.now(),
                "revoked_at": None,
            },
        )
        EnrolledReplica.objects.filter(fleet_id=pool).update(**row, host=str(network))
    return credential


def revoke_fleet(*, pool: str) -> tuple[int, int]:
    """End a pool: its credential, every name that it enrolled, their living boots and leases. Idempotent.

    Returns how many names and how many leases ended. Raises NotEnrolled.
    """
    now = timezone.now()
    with transaction.atomic():
        fleet = lock_fleet_credential(pool)
        if fleet is None:
            raise NotEnrolled(f"no pool is called {pool}")
        fleet.revoked_at = fleet.revoked_at or now
        fleet.save(update_fields=["revoked_at"])
        names = EnrolledReplica.objects.filter(fleet=fleet)
        ended = names.filter(revoked_at__isnull=True).update(revoked_at=now)
        Replica.objects.filter(name__in=names.values("name"), gone_at__isnull=True).update(gone_at=now)
        live = Lease.objects.live(now).filter(release__replica__name__in=names.values("name"))
        return ended, live.update(revoked_at=now)


def is_fleet_credential(credential: str) -> bool:
    """Return whether a credential is one of a pool, by its form."""
    return credential.startswith(PREFIX)


def base_of(*, pool: str, credential: str) -> str:
    """Return the fingerprint of a pool's base model to its controller, which shows the pool's credential.

    Raises NotEnrolled, with one text for an unknown or revoked pool and a wrong credential.
    """
    found = FleetCredential.objects.filter(pool=pool, revoked_at__isnull=True)
    row = found.values_list("credential_digest", "base_model__fingerprint").first()
    if row is None or not hmac.compare_digest(_digest(credential), bytes(row[0])):
        raise _refused()
    return str(row[1])


def claim_name(*, request: EnrolmentRequest) -> None:
    """Enrol the name that a replica of a fleet claims.

    Repeating an accepted claim with the same identity changes nothing. A name that was revoked alone stays so; those
    that went with their pool may come back under a credential that was issued since. Raises NotEnrolled, with one text
    for an unknown pool and a wrong or revoked credential.
    """
    public_key, now = signing_identity(request), timezone.now()
    with transaction.atomic():
        fleet = lock_fleet_credential(_pool_of(request.name))
        if (
            fleet is None
            or fleet.revoked_at is not None
            or not hmac.compare_digest(_digest(request.credential), bytes(fleet.credential_digest))
        ):
            raise _refused()
        known = lock_enrolled_replica(request.name)
        if known is not None:
            mine = known.fleet_id == fleet.pk and hmac.compare_digest(
                bytes(known.identity_public_key or b""), public_key
            )
            if not mine or (known.revoked_at is not None and known.revoked_at >= fleet.issued_at):
                raise _refused()
            if known.revoked_at is None:
                return
        _require_place(fleet, request.name)
        if EnrolledReplica.objects.filter(fleet=fleet).count() >= MAX_NAMES:
            raise NotEnrolled(f"the pool {fleet.pool} has used up its names; staff can revoke it and issue it again")
        EnrolledReplica.objects.update_or_create(
            name=request.name,
            defaults={
                "fleet": fleet,
                "base_model_id": fleet.base_model_id,
                "host": fleet.network,
                "builds": fleet.builds,
                "releases_per_hour": fleet.releases_per_hour,
                "credential_digest": fleet.credential_digest,
                "credential_expires_at": now,
                "identity_public_key": public_key,
                "enrolled_at": now,
                "revoked_at": None,
            },
        )


def admit_boot(name: str) -> None:
    """Check that a replica may register as one of its fleet; nothing is asked of other replicas.

    Locks the fleet: call it in the transaction that registers, before the replica is locked. Raises NotEnrolled when
    the pool was revoked, or as many of its replicas live as may.
    """
    pool = EnrolledReplica.objects.filter(name=name).values_list("fleet_id", flat=True).first()
    if pool is None:
        return
    fleet = lock_fleet_credential(pool)
    assert fleet is not None, "the name points to it"
    if fleet.revoked_at is not None:
        raise NotEnrolled(f"the pool {pool} was revoked")
    _require_place(fleet, name)


def origin_of(known: EnrolledReplica, url: str) -> str:
    """Return the origin at which the platform may call this replica (`checked_origin`): of a fleet, one in its network.

    Raises what `checked_origin` raises.
    """
    allowed = settings.ENV.replica_networks
    if known.fleet_id is None:
        return checked_origin(url, host=known.host, networks=allowed)
    network = ipaddress.ip_network(known.host)
    try:
        host = urlsplit(url).hostname or ""
        inside = ipaddress.ip_address(host) in network
    except ValueError:
        raise NotEnrolled("a replica of a fleet registers at an address, not at a name") from None
    if not inside:
        raise NotEnrolled(f"a replica of this fleet may register in {network}, not at {host}")
    return checked_origin(url, host=host, networks=allowed)


def _require_place(fleet: FleetCredential, name: str) -> None:
    """Raise NotEnrolled unless fewer other replicas of the fleet live, or are about to, than may."""
    now = timezone.now()
    boots = Replica.objects.filter(name=OuterRef("name"))
    living = boots.filter(gone_at__isnull=True, last_seen_at__gt=now - timedelta(seconds=_PLACE_SECONDS))
    others = EnrolledReplica.objects.filter(fleet=fleet, revoked_at__isnull=True).exclude(name=name)
    fresh = Q(enrolled_at__gt=now - timedelta(seconds=_FIRST_BOOT_SECONDS)) & ~Exists(boots)
    if others.filter(Exists(living) | fresh).count() >= fleet.replicas:
        raise NotEnrolled(f"the pool {fleet.pool} may have {fleet.replicas} replicas at once, and has them")


def _pool_of(name: str) -> str:
    try:
        return parse_fleet_name(name).pool
    except ProtocolError:
        raise _refused() from None


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise BadRequest(f"{text!r} is no network; write one as 10.0.0.0/8, or as an address") from None


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()


def _refused() -> NotEnrolled:
    return NotEnrolled("the credential is unknown, spent or expired; staff can issue another")
