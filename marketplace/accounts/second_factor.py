"""The second factor: codes of an authenticator app (TOTP, RFC 6238), set up at /accounts/2fa/ and asked for at sign-in.

Acts that must not rest on a password alone ask for a fresh code again with `has_second_factor`.
"""

from __future__ import annotations

import base64
import hashlib

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from cryptography.fernet import Fernet
from django.conf import settings
from django.core.cache import cache

from marketplace.accounts.models import User

MAX_TRIES = 5  # within `TRIES_SECONDS`, per user
TRIES_SECONDS = 300


class EncryptedFactors(DefaultMFAAdapter):
    """Keeps the secrets of authenticator apps encrypted: a copy of the database alone gives no codes."""

    def encrypt(self, text: str) -> str:
        """Encrypt with a key that is made of the site's secret key."""
        return _cipher().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """Undo `encrypt`."""
        return _cipher().decrypt(encrypted_text.encode()).decode()


def _cipher() -> Fernet:
    digest = hashlib.sha256(b"second factor\0" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))


def has_second_factor(*, user: User, code: str) -> bool:
    """Return whether `code` is the one that the user's authenticator app shows now, and use it up.

    False also for a user without an app, and after `MAX_TRIES` tries.
    """
    key = f"second-factor-tries:{user.pk}"
    cache.add(key, 0, timeout=TRIES_SECONDS)
    if cache.incr(key) > MAX_TRIES:
        return False
    factor = Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP).first()
    return factor is not None and bool(factor.wrap().validate_code(code.strip()))
