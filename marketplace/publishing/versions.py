"""A version's life. States move along `Version.NEXT_STATES` only, each step by one conditional UPDATE: none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from marketplace.accounts.errors import Conflict
from marketplace.alerts.events import emit
from marketplace.catalog.models import Version
from marketplace.publishing.models import Sketch
from protocol.contracts import CONTRACT_KEY, EXAMPLES_KEY, read_example_counts, read_public_contract
from protocol.lineage import SKETCH_KEY, read_sketch
from protocol.messages import to_fields

State = Version.State
_EVENTS = {State.PUBLISHED: "version.published", State.REFUSED: "version.refused"}


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
    if moved and to in _EVENTS:
        data = {"version_id": str(version.pk), "model": version.model.full_name, "version": version.number}
        emit(organization=version.model.organization, kind=_EVENTS[State(to)], data=data)
    if not moved and strict:
        raise Conflict(f"version {version.number} is {version.state} and cannot become {to}", code="wrong_state")
    return bool(moved)
