"""Incidents that a person resolves. Payouts are frozen while one about money is open, so a password is not enough."""

from __future__ import annotations

import logging

from django.db import transaction
from django.utils import timezone

from billing.errors import IncidentNotFound, SecondFactorRequired
from billing.models import Incident
from marketplace.accounts import audit
from marketplace.accounts.models import User
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.accounts.policies import is_operator
from marketplace.accounts.second_factor import has_second_factor
from marketplace.accounts.selectors import organization_named

logger = logging.getLogger(__name__)

MAX_REASON = 500


def require_operator(*, user: User, code: str) -> None:
    """Check that `user` is staff and shows a fresh code of the authenticator app. Raises SecondFactorRequired.

    The right first: who is no operator learns nothing about codes, and uses none up.
    """
    if not is_operator(user=user, key_organization_slug=None) or not has_second_factor(user=user, code=code):
        raise SecondFactorRequired


def clear_incident(*, incident_id: int, user: User, code: str, reason: str) -> Incident:
    """Resolve an incident in the name of a member of staff, who shows a fresh code of the authenticator app.

    The incident keeps who, when and why. Idempotent for one that is resolved. Raises SecondFactorRequired (nothing
    changed), IncidentNotFound, ValueError without a reason.
    """
    if not reason.strip():
        raise ValueError("say why the incident is resolved")
    require_operator(user=user, code=code)
    with transaction.atomic():
        incident = Incident.objects.filter(pk=incident_id).first()
        if incident is None:
            raise IncidentNotFound
        now = timezone.now()
        cleared = {"by": user.email, "at": now.isoformat(), "reason": reason.strip()[:MAX_REASON]}
        Incident.objects.filter(pk=incident_id, resolved_at=None).update(
            resolved_at=now, detail=incident.detail | {"cleared": cleared}
        )
        platform = organization_named(PLATFORM_SLUG)
        if platform is not None:  # an incident is about the books, not about one organization
            actor, kind = audit.Actor(user=user, as_staff=True), {"kind": incident.kind}
            subject = str(incident_id)
            audit.record(organization=platform, actor=actor, act="incident.cleared", subject=subject, data=kind)
    logger.warning("incident %s (%s) was cleared by %s", incident_id, incident.kind, user.pk)
    incident.refresh_from_db()
    return incident
