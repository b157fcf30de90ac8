"""A version's life. States move along `Version.NEXT_STATES` only, each step by one conditional UPDATE: none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from marketplace.accounts.errors import Conflict
from marketplace.catalog import selectors as catalog_selectors
from marketplace.catalog.models import Version
from marketplace.vault import tasks as vault_tasks
from protocol.contracts import CONTRACT_KEY, read_public_contract
from protocol.messages import to_fields

State = Version.State


def record_verification(*, version: Version, ok: bool, report: Mapping[str, Any]) -> Version:
    """Record what a replica found: `report` holds the facts, or the refusal. A late second answer is ignored.

    The contract in a report becomes the version's own. Raises ProtocolError for one that no replica may report.
    """
    facts = dict(report)
    contract = facts.pop(CONTRACT_KEY, None)
    move_version(
        version,
        State.VERIFIED if ok else State.REFUSED,
        from_state=State.VERIFYING,
        strict=False,
        report=facts,
        contract=None if contract is None else to_fields(read_public_contract(contract)),
    )
    return version


def publish_version(*, version: Version) -> Version:
    """Offer a verified version for sale; idempotent. Raises Conflict if it is unverified or has no price."""
    if version.state == State.PUBLISHED:
        return version
    if version.state == State.VERIFIED and catalog_selectors.price_of(version=version) is None:
        raise Conflict("set a price first", code="no_price")
    move_version(version, State.PUBLISHED, published_at=timezone.now())
    return version


@transaction.atomic
def retire_version(*, version: Version) -> Version:
    """Take a version off sale; replicas drop it. Retiring it again only tells them again. Raises Conflict."""
    if version.state != State.RETIRED:
        move_version(version, State.RETIRED)
    _tell_replicas(version)
    return version


@transaction.atomic
def revoke_version(*, version: Version, reason: str) -> Version:
    """Pull the kill switch: replicas refuse, abort and zero it. Revoking again pushes again. Raises Conflict."""
    if version.state != State.REVOKED:
        move_version(version, State.REVOKED, report={**version.report, "revocation": {"reason": reason}})
    _tell_replicas(version)
    return version


def move_version(
    version: Version, to: str, *, from_state: str | None = None, strict: bool = True, **changes: Any
) -> bool:
    """Move `version` to state `to` together with `changes` and refresh it; True if this call moved it.

    One UPDATE guarded by the states that may precede `to` (or `from_state` alone). From any other state it raises
    Conflict, or returns False when not `strict`.
    """
    before = [state for state, following in Version.NEXT_STATES.items() if to in following]
    if from_state is not None:
        assert from_state in before, f"{from_state} never leads to {to}"
        before = [from_state]
    moved = Version.objects.filter(pk=version.pk, state__in=before).update(
        state=to, state_changed_at=timezone.now(), **changes
    )
    version.refresh_from_db()
    if not moved and strict:
        raise Conflict(f"version {version.number} is {version.state} and cannot become {to}", code="wrong_state")
    return bool(moved)


def _tell_replicas(version: Version) -> None:
    version_id = str(version.id)
    transaction.on_commit(lambda: vault_tasks.push_revocation.delay(version_id))
