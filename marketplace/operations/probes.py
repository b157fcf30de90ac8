"""Probes of the status page: each looks at one component as a customer would, once a minute.

A probe that raises, or takes longer than `PROBE_SECONDS`, counts as bad. No probe buys anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from billing.stripe import stripe_gateway
from marketplace.alerts.models import Delivery
from marketplace.operations.models import Component, Probe, ProbeDay
from marketplace.vault.selectors import live_replicas

logger = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
KEPT = timedelta(days=2)
WAITS = timedelta(minutes=5)  # a delivery that is due for so long was not even tried


class ProbeFailed(Exception):
    """The component does not do its work; the text says what was seen, for staff."""


def probe_all(probes: Mapping[str, Callable[[], None]] | None = None) -> dict[str, bool]:
    """Look at every component, store what was seen, and forget the probes of days before yesterday."""
    seen = {name: _looked(name, look) for name, look in (PROBES if probes is None else probes).items()}
    day = timezone.now().date()
    with transaction.atomic():
        Probe.objects.bulk_create(seen.values())
        for name, probe in seen.items():
            ProbeDay.objects.get_or_create(component=name, day=day)
            counted = "good" if probe.ok else "bad"
            ProbeDay.objects.filter(component=name, day=day).update(**{counted: F(counted) + 1})
        Probe.objects.filter(at__lt=timezone.now() - KEPT).delete()
    return {name: probe.ok for name, probe in seen.items()}


def _looked(name: str, look: Callable[[], None]) -> Probe:
    began = time.monotonic()
    error = ""
    try:
        look()
    except Exception as failure:
        error = str(failure)[:100] if isinstance(failure, ProbeFailed) else type(failure).__name__
        logger.warning("probe of %s: %s", name, error)
    seconds = time.monotonic() - began
    if not error and seconds > PROBE_SECONDS:
        error = f"took {seconds:.0f} s"
    return Probe(component=name, ok=not error, milliseconds=int(seconds * 1000), error=error)


def _get(base: str, path: str) -> None:
    """Ask for a page. Raises ProbeFailed."""
    import httpx  # which loads rich and pygments: the web process starts without them

    with httpx.Client(timeout=PROBE_SECONDS, trust_env=False) as client:
        status = client.get(base + path).status_code
    if status != 200:
        raise ProbeFailed(f"{path} answered {status}")


def _predictions() -> None:
    _get(settings.ENV.api_url, "/healthz")
    replicas = live_replicas()
    if not replicas:
        raise ProbeFailed("no replica takes new work")
    failures: list[Exception] = []
    for replica in replicas[:3]:
        try:
            return _get(replica.url, "/readyz")
        except Exception as failure:
            failures.append(failure)
    raise ProbeFailed("no replica is ready") from failures[-1]


def _payments() -> None:
    stripe_gateway().events.undelivered(types=["charge.dispute.created"], since=int(time.time()) - 60, limit=1)


def _webhooks() -> None:
    if Delivery.objects.filter(next_attempt_at__lt=timezone.now() - WAITS).exists():
        raise ProbeFailed("deliveries are due and not tried")


PROBES: Mapping[str, Callable[[], None]] = {
    Component.PREDICTIONS: _predictions,
    Component.API: lambda: _get(settings.ENV.api_url, "/api/v1/bases"),
    Component.DASHBOARD: lambda: _get(settings.ENV.api_url, "/accounts/login/"),
    Component.PAYMENTS: _payments,
    Component.WEBHOOKS: _webhooks,
}
