"""The status page and the fleet as JSON: one form for the file, the stream of events and the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from marketplace.operations.fleet import Adapter, FleetLine, fleet
from marketplace.operations.fleet_events import FleetEvent, fleet_events
from marketplace.operations.models import Incident
from marketplace.operations.pools import PoolLine, pools
from marketplace.operations.status import Status
from protocol.demand import DEMAND_SECONDS


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


def pool_fields(line: PoolLine) -> dict[str, Any]:
    """Return a pool as plain values."""
    report, fresh = (line.known.report, line.known.is_fresh) if line.known else (None, False)
    return {
        "name": line.name,
        "base": line.base,
        "state": line.state,
        "healthy": line.is_healthy,
        "live": line.live,
        "draining": line.draining,
        "silent": line.silent,
        "allowed": line.allowed,
        "seats": line.seats,
        "running": line.running,
        "waiting": line.waiting,
        "load_percent": line.load_percent,
        "running_percent": line.running_percent,
        "waiting_percent": line.waiting_percent,
        "kv_percent": line.kv_percent,
        "tokens_per_second": round(line.tokens_per_second, 1),
        "builds": list(line.builds),
        "demand_seconds": DEMAND_SECONDS if line.demand else None,
        "classes": [
            {
                "name": one.name,
                "target_s": one.target_s,
                "wait_s": None if one.wait_s is None else round(one.wait_s, 3),
                "arrivals_per_s": round(one.arrivals, 2),
                "refused_per_s": round(one.refused, 2),
            }
            for one in line.classes
        ],
        "scaling": None
        if report is None or line.known is None
        else {
            "wanted": report.wanted,
            "ordered": report.replicas,
            "least": report.least,
            "most": report.most,
            "why": report.why,
            "ready_seconds": report.ready_seconds,
            "age_seconds": round(line.known.age, 1),
            "fresh": fresh,
        },
    }


def event_fields(event: FleetEvent) -> dict[str, Any]:
    """Return an event as plain values."""
    return {
        "at": event.at.isoformat(),
        "replica": event.replica,
        "what": event.what,
        "effects": None if event.effects is None else dict(event.effects),
    }


def fleet_fields(adapters: Sequence[Adapter] | None) -> dict[str, Any]:
    """Return the whole fleet as plain values. adapters: where a model's adapters are, if that was asked."""
    lines = pools()
    return {
        "at": timezone.now().isoformat(),
        "healthy": all(line.is_healthy for line in lines),
        "pools": [pool_fields(line) for line in lines],
        "replicas": [replica_fields(line) for line in fleet()],
        "events": [event_fields(event) for event in fleet_events()],
        "adapters": None
        if adapters is None
        else [{"name": one.name, "replicas": list(one.replicas)} for one in adapters],
    }
