"""Events for the organization's own programs. To be replaced by the module of customers' webhooks, of the same name."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from marketplace.accounts.models import Organization

logger = logging.getLogger(__name__)


def emit(*, organization: Organization, kind: str, data: Mapping[str, str | int | None]) -> None:
    """Take an event of the organization; nothing is posted."""
    logger.debug("event %s of %s", kind, organization.pk)
