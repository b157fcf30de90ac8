"""The status page and the fleet as JSON: one form for the file, the stream of events and the API."""

from __future__ import annotations

from typing import Any

from marketplace.operations.fleet import FleetLine
from marketplace.operations.models import Incident
from marketplace.operations.status import Status


def status_fields(status: Status) -> dict[str, Any]:
    """Return the status page as plain values."""
    return {
        "state": status.state,
        "at": status.at.isoformat(),
        "components": [
            {
                "name": component.name,
                "label": component.label,
                "state": component.state,
                "uptime_percent": component.percent,
                "days": [{"day": day.day.isoformat(), "uptime_percent": day.percent} for day in component.days],
            }
            for component in status.components
        ],
        "incidents": [incident_fields(one) for one in (*status.current, *status.past)],
        "maintenance": [incident_fields(one) for one in status.planned],
    }


def incident_fields(incident: Incident) -> dict[str, Any]:
    """Return an incident with its messages, the newest first; without whoever wrote them."""
    moments = ("starts_at", "ends_at", "resolved_at")
    return {
        "id": incident.pk,
        "kind": incident.kind,
        "title": incident.title,
        "components": incident.components,
        **{name: value.isoformat() if (value := getattr(incident, name)) else None for name in moments},
        "updates": [
            {"state": update.state, "text": update.text, "created_at": update.created_at.isoformat()}
            for update in incident.updates.all()
        ],
    }


def replica_fields(line: FleetLine) -> dict[str, Any]:
    """Return one replica as plain values."""
    return {
        "name": line.name,
        "state": line.state,
        "base": line.base,
        "host": line.host,
        "url": line.boot.url if line.boot else None,
        "replica_id": str(line.replica_id) if line.replica_id else None,
        "build": line.build or None,
        "running": line.running,
        "waiting": line.waiting,
        "tokens_per_second": line.tokens_per_second,
        "cache_hit_percent": line.cache_hit_percent,
        "kv_percent": line.kv_percent,
        "leases": line.leases,
        "resident": list(line.resident),
        "resident_count": line.resident_count,
        "last_seen_at": line.last_seen_at.isoformat() if line.last_seen_at else None,
        "drained": line.is_drained,
    }
