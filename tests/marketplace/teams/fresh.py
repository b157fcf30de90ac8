"""A session whose person showed the password a moment ago."""

from __future__ import annotations

import time

from django.test import Client


def freshen(client: Client) -> Client:
    """Note that the password was shown just now, as allauth notes it."""
    session = client.session
    session["account_authentication_methods"] = [{"method": "password", "at": time.time(), "reauthenticated": True}]
    session["account_authentication_methods_user"] = session["_auth_user_id"]
    session.save()
    return client
