"""Browsers whose person has not proven themselves for a while."""

from __future__ import annotations

import time

from django.test import Client

from marketplace.accounts import freshness


def stale(client: Client) -> Client:
    """Return the same browser an hour later."""
    session = client.session
    session[freshness.SESSION_KEY] = time.time() - 3600
    session.save()
    return client
