"""`/metrics` of the platform: the gateway's own times, and what database and Valkey say of everything else.

It answers who sends the bearer token `METRICS_TOKEN`; without that variable there is no such page.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Iterator

from django.conf import settings
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from billing.models import Incident
from marketplace.gateway.metrics import REGISTRY
from marketplace.operations.task_times import task_times

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# One row of numbers. Each is read by an index or from a small table.
_NUMBERS = """
SELECT (SELECT count(*) FROM billing_hold WHERE state = 'open'),
    (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0) FROM billing_hold WHERE state = 'open'),
    (SELECT coalesce(sum(predictions), 0) FROM billing_spantotal WHERE facet = 'platform' AND span = 0),
    (SELECT coalesce(sum(charged_nano_usd), 0) FROM billing_spantotal WHERE facet = 'platform' AND span = 0),
    (SELECT coalesce(extract(epoch FROM now() - min(complete_at)), 0) FROM billing_rollupmark),
    (SELECT coalesce(extract(epoch FROM now() - min(complete_at)), 0) FROM watch_mark),
    (SELECT count(*) FROM alerts_delivery WHERE next_attempt_at IS NOT NULL),
    (SELECT count(*) FROM billing_outbox WHERE announced_at IS NULL),
    (SELECT count(*) FROM billing_incident WHERE resolved_at IS NULL),
    (SELECT count(*) FROM billing_incident WHERE resolved_at IS NULL AND kind = ANY (%s)),
    (SELECT count(*) FROM billing_incident WHERE resolved_at IS NULL AND kind = ANY (%s)),
    (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0) FROM billing_outbox
        WHERE announced_at IS NULL),
    (SELECT count(*) FROM alerts_delivery WHERE delivered_at IS NULL AND attempts >= 3 AND error <> ''),
    (SELECT count(*) FROM vault_replica WHERE gone_at IS NULL),
    (SELECT count(*) FROM vault_enrolledreplica WHERE drained_at IS NOT NULL AND revoked_at IS NULL),
    (SELECT count(*) FROM accounts_organization WHERE suspended_at IS NOT NULL)
"""
# One line for each replica that staff allowed and that has been there, unless it said good-bye: no more series than
# staff made names.
_SEEN = """
SELECT e.name, extract(epoch FROM now() - max(r.last_seen_at)) FROM vault_enrolledreplica e
JOIN vault_replica r ON r.name = e.name WHERE e.revoked_at IS NULL GROUP BY e.name
HAVING (array_agg(r.retired_at ORDER BY r.registered_at DESC))[1] IS NULL ORDER BY e.name LIMIT 500
"""
_PROBES = """
SELECT DISTINCT ON (component) component, ok::int FROM operations_probe
WHERE at > now() - interval '5 minutes' ORDER BY component, at DESC
"""
_GAUGES = {
    "open_holds": "Predictions in flight",
    "oldest_hold_seconds": "Age of the oldest prediction in flight",
    "predictions": "Predictions that were settled",
    "charged_nano_usd": "What customers were charged, after corrections",
    "usage_lag_seconds": "Age of what the sums of usage lack",
    "watch_lag_seconds": "Age of what the sums of models in use lack",
    "alerts_waiting": "Deliveries of alerts on their way",
    "outbox_waiting": "Events that were not delivered yet",
    "open_incidents": "Incidents that nobody resolved",
    "freezing_incidents": "Incidents that nobody resolved and that stop payouts",
    "custody_incidents": "Incidents that nobody resolved about rows or chains that were changed past the platform",
    "outbox_age_seconds": "Age of the oldest event that was not delivered",
    "deliveries_failing": "Deliveries of alerts that failed three times and more",
    "live_replicas": "Replicas that serve",
    "drained_replicas": "Replicas that staff send no work",
    "suspended_organizations": "Organizations that staff suspended",
}
_COUNTERS = frozenset({"predictions"})


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer a scrape."""
    token = settings.ENV.metrics_token
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not token or not hmac.compare_digest(given.encode(), token.encode()):
        raise Http404("there is no such page")
    return HttpResponse(exposition(), content_type=CONTENT_TYPE)


def exposition() -> bytes:
    """Return all metrics in Prometheus' text format."""
    platform = CollectorRegistry()
    platform.register(_PlatformCollector())
    gateway = REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        gateway = CollectorRegistry()
        MultiProcessCollector(gateway)
    return generate_latest(gateway) + generate_latest(platform)


class _PlatformCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        with connection.cursor() as cursor:
            cursor.execute(_NUMBERS, [list(Incident.FREEZING), list(Incident.CUSTODY)])
            numbers = cursor.fetchone()
            cursor.execute(_SEEN)
            seen = cursor.fetchall()
            cursor.execute(_PROBES)
            probes = cursor.fetchall()
        for (name, text), value in zip(_GAUGES.items(), numbers, strict=True):
            family = CounterMetricFamily if name in _COUNTERS else GaugeMetricFamily
            yield family(f"intarsia_{name}", text, value=float(value))
        silent = GaugeMetricFamily("intarsia_replica_silent_seconds", "Since its last heartbeat", labels=["replica"])
        for name, age in seen:
            silent.add_metric([name], max(0.0, float(age)))
        works = GaugeMetricFamily("intarsia_component_up", "Whether the last probe was good", labels=["component"])
        for component, ok in probes:
            works.add_metric([component], ok)
        yield from (silent, works)
        yield from _tasks()


def _tasks() -> Iterator[Metric]:
    up = GaugeMetricFamily("intarsia_valkey_up", "Whether Valkey answers")
    try:
        times = task_times(settings.ENV.valkey_url)
    except RedisError:
        up.add_metric([], 0)
        yield up
        return
    up.add_metric([], 1)
    age = GaugeMetricFamily("intarsia_task_age_seconds", "Since a task last ended well", labels=["task"])
    for task, at in times.ended.items():
        age.add_metric([task], max(0.0, time.time() - at))
    ends = CounterMetricFamily("intarsia_tasks", "Tasks by how they ended", labels=["task", "state"])
    for (task, state), count in times.runs.items():
        ends.add_metric([task, state.lower()], count)
    spent = CounterMetricFamily("intarsia_task_seconds", "Time in tasks", labels=["task"])
    for task, seconds in times.seconds.items():
        spent.add_metric([task], seconds)
    yield from (
        up,
        age,
        ends,
        spent,
        GaugeMetricFamily("intarsia_tasks_waiting", "Tasks in the queue", value=times.waiting),
    )
