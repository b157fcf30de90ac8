"""The periodic work of this app."""

from __future__ import annotations

from celery import shared_task

from marketplace.operations.probes import probe_all


@shared_task(name="marketplace.operations.tasks.probe_components")
def probe_components() -> int:
    """Look at every component; return how many work."""
    return sum(probe_all().values())
