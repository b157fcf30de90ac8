"""Fresh sessions: their person was there within the last minutes, and may move money, weights and roles.

A sign-in counts (password, passkey, with second factor where there is one), and so does each later proof on the pages
below /accounts/reauthenticate/.
"""

from __future__ import annotations

import time
from typing import Any

from allauth.account.authentication import get_authentication_records
from django.conf import settings
from django.contrib.auth.signals import user_logged_in
from django.dispatch import receiver

from marketplace.accounts.errors import NotAllowed

SESSION_KEY = "signed_in_at"


class ReauthenticationRequired(NotAllowed):
    """The session is older than an act like this allows. Nothing changed."""

    code = "reauthentication_required"

    def __init__(self) -> None:
        """Say what to do."""
        minutes = settings.ACCOUNT_REAUTHENTICATION_TIMEOUT // 60
        super().__init__(
            f"confirm that it is you at /accounts/reauthenticate/, then try again within {minutes} minutes; "
            "an API key is not asked"
        )


@receiver(user_logged_in, dispatch_uid="note_sign_in")
def note_sign_in(request: Any, **_: Any) -> None:
    """Note in the session when its person signed in."""
    if getattr(request, "session", None) is not None:
        request.session[SESSION_KEY] = time.time()


def is_fresh(request: Any) -> bool:
    """Return whether the session's person signed in, or proved themselves again, within the last minutes."""
    if not request.user.is_authenticated:
        return False
    shown = [record["at"] for record in get_authentication_records(request, request.user)]
    last = max([request.session.get(SESSION_KEY, 0), *shown])
    return bool(time.time() - last < settings.ACCOUNT_REAUTHENTICATION_TIMEOUT)
