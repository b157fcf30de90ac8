"""A version's life. States move along `Version.NEXT_STATES` only, each step by one conditional UPDATE: none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.alerts.events import emit
from marketplace.catalog.models import Version
from marketplace.catalog.services.rollouts import version_withdrawn
from marketplace.publishing.models import Sketch
from protocol.contracts import CONTRACT_KEY, EXAMPLES_KEY, read_example_counts, read_public_contract
from protocol.lineage import SKETCH_KEY, read_sketch
from protocol.messages import to_fields
from protocol.reference import REFERENCE_KEY, read_reference_counts

State = Version.State
_EVENTS = {State.PUBLISHED: "version.published", State.REFUSED: "version.refused"}
MAX_CHANGELOG = 10_000  # characters
_NEVER_CHANGED = (State.PUBLISHED, State.RETIRED, State.REVOKED)
_OFF_THE_WAY = (State.VERIFIED, State.RETIRED, State.REVOKED)


@transaction.atomic
def record_verification(*, version: Version, ok: bool, report: Mapping[str, Any]) -> Version:
    """Record what a replica found: `report` holds the facts, or the refusal. A late second answer is ignored.

    The contract in a report becomes the version's own, and the sketch of its weights goes where no page and no answer
    finds it. Raises ProtocolError for what no replica may report.
    """
    facts = dict(report)
    contract, sketch = facts.pop(CONTRACT_KEY, None), facts.pop(SKETCH_KEY, None)
    values = None if sketch is None else read_sketch(sketch)
    if EXAMPLES_KEY in facts:
        facts[EXAMPLES_KEY] = to_fields(read_example_counts(facts[EXAMPLES_KEY]))
    if REFERENCE_KEY in facts:
        facts[REFERENCE_KEY] = to_fields(read_reference_counts(facts[REFERENCE_KEY]))
    moved = move_version(
        version,
        State.VERIFIED if ok else State.REFUSED,
        from_state=State.VERIFYING,
        strict=False,
        report=facts,
        contract=None if contract is None else to_fields(read_public_contract(contract)),
    )
    if moved and values is not None:
        Sketch.objects.create(version=version, values=values)
    return version


@transaction.atomic
def change_changelog(*, version: Version, text: str, actor: Actor) -> Version:
    """Say what is new in a version that was never on sale; later the words stand. Raises Conflict, InvalidInput."""
    if len(text) > MAX_CHANGELOG:
        raise InvalidInput(f"must have at most {MAX_CHANGELOG:,} characters", field="changelog")
    waiting = Version.objects.filter(pk=version.pk, published_at=None).exclude(state__in=_NEVER_CHANGED)
    if not waiting.update(changelog=text.strip()):
        raise Conflict(f"version {version.number} was published: its changelog stands", code="published")
    version.refresh_from_db(fields=["changelog"])
    model = version.model
    subject = f"{model.full_name}@{version.number}"
    audit.record(organization=model.organization, actor=actor, act="version.changelog", subject=subject)
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
    with transaction.atomic():
        moved = Version.objects.filter(pk=version.pk, state__in=before).update(
            state=to, state_changed_at=timezone.now(), **changes
        )
        version.refresh_from_db()
        if moved and to in _OFF_THE_WAY:
            version_withdrawn(version)
        if moved and to in _EVENTS:
            data = {"version_id": str(version.pk), "model": version.model.full_name, "version": version.number}
            emit(organization=version.model.organization, kind=_EVENTS[State(to)], data=data)
    if not moved and strict:
        raise Conflict(f"version {version.number} is {version.state} and cannot become {to}", code="wrong_state")
    return bool(moved)
