"""Incidents that a person resolves. Payouts are frozen while one about money is open, so a password is not enough."""

from __future__ import annotations

import logging

from django.db import transaction
from django.utils import timezone

from billing.errors import IncidentNotFound, SecondFactorRequired
from billing.models import Incident
from marketplace.accounts.models import User
from marketplace.accounts.policies import is_operator
from marketplace.accounts.second_factor import has_second_factor

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
    logger.warning("incident %s (%s) was cleared by %s", incident_id, incident.kind, user.pk)
    incident.refresh_from_db()
    return incident
