"""Staff suspend an organization, and reinstate it.

A suspended organization makes no predictions (gateways follow within 2 s), publishes nothing, tops up nothing and is
paid nothing; its models are for sale to nobody and out of the catalogue. Its members still sign in, read and appeal.
"""

from __future__ import annotations

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from marketplace.accounts import audit
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization, User
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.accounts.selectors import organization_named
from marketplace.alerts.kinds import SUSPENSION
from marketplace.alerts.services import tell

MAX_REASON = 500


@transaction.atomic
def suspend_organization(*, slug: str, by: User, reason: str) -> Organization:
    """Suspend an organization and mail its members `reason`. Raises NotFound, InvalidInput, Conflict."""
    text = _reason(reason)
    organization = _locked(slug)
    if organization.slug == PLATFORM_SLUG:
        raise Conflict("the platform's own organization cannot be suspended", code="own_organization")
    if organization.suspended_at is not None:
        raise Conflict("this organization is suspended already", code="organization_suspended")
    organization.suspended_at, organization.suspension_reason = timezone.now(), text
    organization.save(update_fields=["suspended_at", "suspension_reason"])
    _record(organization, by, "organization.suspended", text)
    _tell(
        organization,
        subject=f"{organization.name} is suspended",
        text=f"The platform has suspended {organization.slug}: {text}\n\nIts keys make no predictions, its models are "
        "not for sale, and nothing is topped up or paid out. Credit and earnings stay in the books. To appeal, write "
        f"to {settings.SUPPORT_EMAIL} and say why the suspension is wrong; a person answers.",
    )
    return organization


@transaction.atomic
def reinstate_organization(*, slug: str, by: User, reason: str) -> Organization:
    """End a suspension; everything is as it was before. Raises NotFound, InvalidInput, Conflict."""
    text = _reason(reason)
    organization = _locked(slug)
    if organization.suspended_at is None:
        raise Conflict("this organization is not suspended", code="not_suspended")
    organization.suspended_at, organization.suspension_reason = None, ""
    organization.save(update_fields=["suspended_at", "suspension_reason"])
    _record(organization, by, "organization.reinstated", text)
    _tell(
        organization,
        subject=f"{organization.name} is no longer suspended",
        text=f"The platform has ended the suspension of {organization.slug}: {text}\n\nKeys, models, top-ups and "
        "payouts work again.",
    )
    return organization


def _locked(slug: str) -> Organization:
    organization = organization_named(slug)
    if organization is None:
        raise NotFound("there is no such organization")
    return lock_organization(organization.pk)


def _reason(reason: str) -> str:
    text = reason.strip()
    if not text or len(text) > MAX_REASON or "\x00" in text:
        raise InvalidInput(f"say why, in at most {MAX_REASON} characters; the members read it", field="reason")
    return text


def _record(organization: Organization, by: User, act: str, reason: str) -> None:
    actor = Actor(user=by, as_staff=True)
    audit.record(organization=organization, actor=actor, act=act, subject=organization.slug, data={"reason": reason})


def _tell(organization: Organization, *, subject: str, text: str) -> None:
    once = timezone.now().isoformat()
    tell(organization_id=organization.pk, kind=SUSPENSION, once=once, subject=subject, text=text, data={})
