"""The tasks of this app. Each may run twice, or be killed at any line."""

from __future__ import annotations

from celery import shared_task

from marketplace.accounts.audit_seals import seal_days


@shared_task
def seal_audit_log() -> None:
    """Seal the days of the audit log that are over."""
    seal_days()
