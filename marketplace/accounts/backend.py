"""The user a session stands for: one whose row is sealed, or nobody."""

from __future__ import annotations

from typing import Any

from allauth.account.auth_backends import AuthenticationBackend

from marketplace.accounts.models import User
from marketplace.accounts.seals import SealBroken


class SealedBackend(AuthenticationBackend):
    """allauth's sign-in by address and password.

    A row that was changed past the platform ends a sign-in as a wrong password does: Django takes SealBroken, a
    PermissionDenied, for that.
    """

    def get_user(self, user_id: Any) -> User | None:
        """Return the user of a session; None, who is nobody, where the row is not the platform's."""
        try:
            found: User | None = super().get_user(user_id)
        except SealBroken:
            return None
        return found
