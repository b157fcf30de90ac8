"""Acts of staff about replicas, each recorded in the audit log: pages and operations of the API call the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import transaction

from marketplace.accounts.errors import InvalidInput, NotFound
from marketplace.accounts.models import User
from marketplace.catalog.selectors import bases_named
from marketplace.operations.acts import record_act
from marketplace.vault import identities
from marketplace.vault.errors import NotEnrolled
from marketplace.vault.identities import DEFAULT_RELEASES_PER_HOUR, Terms
from marketplace.vault.tasks import hand_over
from protocol.names import is_digest, is_replica_name

MAX_BUILDS = 20
MAX_RELEASES_PER_HOUR = 1_000_000


@contextmanager
def _known(name: str) -> Iterator[None]:
    """Say of a name that staff never allowed that there is no such replica: `NotEnrolled` is for the replica itself."""
    try:
        yield
    except NotEnrolled:
        raise NotFound(f"staff never allowed a replica called {name}") from None


@transaction.atomic
def drain(*, name: str, by: User) -> None:
    """Send a replica no new work; what runs there ends, and its conversations go to their next homes.

    Raises NotFound.
    """
    with _known(name):
        identities.drain_replica(name=name)
    record_act(by=by, act="replica.drained", subject=name)
    transaction.on_commit(lambda: hand_over.delay(name))


@transaction.atomic
def undrain(*, name: str, by: User) -> None:
    """Send a replica new work again. Raises NotFound."""
    with _known(name):
        identities.undrain_replica(name=name)
    record_act(by=by, act="replica.undrained", subject=name)


@transaction.atomic
def revoke(*, name: str, by: User) -> int:
    """End a replica: its identity, its boots and their leases, whose number is returned. Raises NotFound."""
    with _known(name):
        ended = identities.revoke_replica(name=name)
    record_act(by=by, act="replica.revoked", subject=name, data={"leases": ended})
    return ended


@transaction.atomic
def allow(
    *,
    name: str,
    base: str,
    host: str,
    by: User,
    builds: Sequence[str] = (),
    releases_per_hour: int = DEFAULT_RELEASES_PER_HOUR,
) -> str:
    """Allow a replica and return its credential, which is good for one trade within an hour and shown once.

    base: name or fingerprint of its base model. Raises InvalidInput, and Conflict while the name is enrolled.
    """
    if not is_replica_name(name):
        raise InvalidInput("letters, digits, dots, dashes and underscores, at most 100", field="name")
    found = bases_named(base)
    if len(found) != 1:
        raise InvalidInput("several base models have this name" if found else "no such base model", field="base")
    if not host or len(host) > 200 or any(character.isspace() or character in "/@\x00" for character in host):
        raise InvalidInput("the host of the replica's URL: a name or an address", field="host")
    if len(builds) > MAX_BUILDS or not all(is_digest(build) for build in builds):
        raise InvalidInput(f"at most {MAX_BUILDS} digests of 64 hex digits", field="builds")
    if not 0 <= releases_per_hour <= MAX_RELEASES_PER_HOUR:
        raise InvalidInput(f"0 to {MAX_RELEASES_PER_HOUR}", field="releases_per_hour")
    credential = identities.issue_credential(name=name, terms=Terms(found[0], host, builds, releases_per_hour))
    record_act(by=by, act="replica.allowed", subject=name, data={"base": found[0].name, "host": host})
    return credential
