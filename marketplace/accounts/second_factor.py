"""The second factor: an authenticator app (TOTP, RFC 6238) or a passkey, with recovery codes for both.

Each sign-in asks for it. Staff must have one, and so must the members of an organization that requires it. Acts that
must not rest on a session alone ask for a code again with `has_second_factor`.
"""

from __future__ import annotations

import base64
import hashlib

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP
from cryptography.fernet import Fernet
from django.conf import settings
from django.core.cache import cache
from django.db import transaction

from marketplace.accounts import audit
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization, User

FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)

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

    def get_public_key_credential_rp_entity(self) -> dict[str, str]:
        """Name the platform in the dialogs of browsers; a passkey belongs to the host that it was made on."""
        return {**super().get_public_key_credential_rp_entity(), "name": "Intarsia"}

    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:
        """Suggest a name for a new passkey."""
        return f"Passkey {Authenticator.objects.filter(user_id=user.pk, type=type).count() + 1}"

    def can_delete_authenticator(self, authenticator: Authenticator) -> bool:
        """Keep the last second factor of staff: without it they could not do their work, nor set up another."""
        if not authenticator.user.is_staff or authenticator.type not in FACTORS:
            return True
        others = Authenticator.objects.filter(user=authenticator.user, type__in=FACTORS).exclude(pk=authenticator.pk)
        return others.exists()


class SecondFactorMissing(NotAllowed):
    """The platform's staff, or the organization, requires a second factor and the person has none. Nothing changed."""

    code = "second_factor_required"

    def __init__(self) -> None:
        """Say what to do."""
        super().__init__("this requires a second factor: set one up at /dashboard/security")


def is_enrolled(*, user: User) -> bool:
    """Return whether the person has an authenticator app or a passkey, which each sign-in asks for."""
    return bool(list(Authenticator.objects.filter(user=user, type__in=FACTORS)))  # loaded, which checks their seals


def is_missing(*, organization: Organization, user: User) -> bool:
    """Return whether the person lacks the second factor that the organization requires of its members."""
    return organization.requires_second_factor and not is_enrolled(user=user)


def set_authenticator(*, user: User, secret: str) -> None:
    """Give the person an authenticator app with this secret (base32), unless they have one; for commands."""
    if not Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP).exists():
        TOTP.activate(user, secret)


@transaction.atomic
def set_requirement(*, organization: Organization, required: bool, actor: Actor) -> Organization:
    """Require a second factor of every member, or no longer.

    Raises SecondFactorMissing when the person who asks has none: they would lock themselves out.
    """
    if required and (actor.user is None or not is_enrolled(user=actor.user)):
        raise SecondFactorMissing
    locked = lock_organization(organization.pk)
    if locked.requires_second_factor != required:
        locked.requires_second_factor = required
        locked.save(update_fields=["requires_second_factor"])
        act = "second_factor.required" if required else "second_factor.not_required"
        audit.record(organization=locked, actor=actor, act=act, subject=locked.slug)
    organization.requires_second_factor = required
    return organization


def _cipher() -> Fernet:
    digest = hashlib.sha256(b"second factor\0" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))


def has_second_factor(*, user: User, code: str) -> bool:
    """Return whether `code` is the current one of the user's authenticator app, or a recovery code, and use it up.

    False also for a user without either, and after `MAX_TRIES` tries.
    """
    key = f"second-factor-tries:{user.pk}"
    cache.add(key, 0, timeout=TRIES_SECONDS)
    if cache.incr(key) > MAX_TRIES:
        return False
    kinds = (Authenticator.Type.TOTP, Authenticator.Type.RECOVERY_CODES)
    factors = Authenticator.objects.filter(user=user, type__in=kinds).order_by("-type")
    return any(factor.wrap().validate_code(code.strip()) for factor in factors)
