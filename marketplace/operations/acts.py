"""Acts of staff about the platform itself, in the audit log of the organization that runs it."""

from __future__ import annotations

import logging

from marketplace.accounts import audit
from marketplace.accounts.audit import Actor, Value
from marketplace.accounts.models import User
from marketplace.accounts.names import PLATFORM_SLUG
from marketplace.accounts.selectors import organization_named

logger = logging.getLogger(__name__)


def record_act(*, by: User, act: str, subject: str, data: dict[str, Value] | None = None) -> None:
    """Record an act about no customer: a replica, the status page. Call it in the transaction of the act.

    A platform whose own organization is not there yet (`manage.py prepare_platform` makes it) keeps a line of its log.
    """
    organization = organization_named(PLATFORM_SLUG)
    if organization is None:
        logger.warning(
            "%s of %s by %s is in no audit log: there is no organization %s", act, subject, by.pk, PLATFORM_SLUG
        )
        return
    audit.record(organization=organization, actor=Actor(user=by, as_staff=True), act=act, subject=subject, data=data)
