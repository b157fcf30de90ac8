"""Writes of staff about the status page: an incident or planned work, and what is said about it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.accounts.models import User
from marketplace.operations.acts import record_act
from marketplace.operations.models import Component, Incident, Update

MAX_TITLE, MAX_TEXT = 120, 2000
MAX_OPEN = 50
State = Update.State


@transaction.atomic
def post_incident(
    *,
    by: User,
    kind: str,
    title: str,
    components: Collection[str],
    text: str,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> Incident:
    """Tell customers of trouble, or of planned work, which needs its start and end. Raises InvalidInput, Conflict."""
    if kind not in Incident.Kind.values:
        raise InvalidInput("must be minor, major or maintenance", field="kind")
    if not components or not set(components) <= set(Component.values):
        raise InvalidInput(f"must name at least one of {', '.join(Component.values)}", field="components")
    planned = kind == Incident.Kind.MAINTENANCE
    if planned and (starts_at is None or ends_at is None or ends_at <= starts_at):
        raise InvalidInput("planned maintenance needs a start and a later end", field="ends_at")
    if Incident.objects.filter(resolved_at=None).count() >= MAX_OPEN:
        raise Conflict(f"{MAX_OPEN} incidents are open; resolve one first", code="too_many_incidents")
    incident = Incident.objects.create(
        kind=kind,
        title=_text(title, "title", MAX_TITLE),
        components=sorted(set(components)),
        starts_at=starts_at if planned and starts_at is not None else timezone.now(),
        ends_at=ends_at if planned else None,
    )
    state = State.PLANNED if planned else State.INVESTIGATING
    Update.objects.create(incident=incident, state=state, text=_text(text, "text", MAX_TEXT), by=by.pk)
    record_act(by=by, act="incident.posted", subject=str(incident.pk), data={"kind": kind, "title": incident.title})
    return incident


@transaction.atomic
def add_update(*, by: User, incident_id: int, state: str, text: str) -> Incident:
    """Say more about an incident; the state `resolved` ends it.

    Raises NotFound, InvalidInput, and Conflict once it ended.
    """
    if state not in State.values:
        raise InvalidInput(f"must be one of {', '.join(State.values)}", field="state")
    incident = Incident.objects.filter(pk=incident_id).first()
    if incident is None:
        raise NotFound("there is no such incident")
    if incident.resolved_at is not None:
        raise Conflict("this incident is resolved; post a new one", code="incident_resolved")
    Update.objects.create(incident=incident, state=state, text=_text(text, "text", MAX_TEXT), by=by.pk)
    if state == State.RESOLVED:
        incident.resolved_at = timezone.now()
        incident.save(update_fields=["resolved_at"])
    record_act(by=by, act="incident.updated", subject=str(incident.pk), data={"state": state})
    return incident


def _text(value: str, field: str, most: int) -> str:
    text = value.strip()
    if not text or len(text) > most or "\x00" in text:
        raise InvalidInput(f"must be 1 to {most} characters", field=field)
    return text
