"""Mails of this app. A mail that cannot be sent is logged without its address: the page says the same."""

from __future__ import annotations

import logging

from django.core.mail import EmailMessage

logger = logging.getLogger(__name__)


def send(message: EmailMessage) -> bool:
    """Send, and return whether the mail server took it."""
    message.subject = " ".join(message.subject.split())[:200]
    try:
        return bool(message.send())
    except OSError:
        logger.warning("a mail to a member was not sent", exc_info=True)
        return False
