"""The session engine (SESSION_ENGINE): rows hold the digest of a session's key, and their data is bound to it.

A session is the cookie that a browser shows. Whoever reads the tables of sessions has no cookie; whoever writes them
makes no session, since its data is signed with SECRET_KEY for its own row, and cannot be moved to another one.
"""

from __future__ import annotations

import hashlib
from typing import Any

from allauth.usersessions.models import UserSession
from django.contrib.sessions.backends import db
from django.contrib.sessions.models import Session
from django.db.models import CharField

_DIGITS = 40  # of the digest, in hex: the length of the columns
_DOMAIN = b"intarsia/session/v1\0"


class StoredKey(str):
    """The digest of a session's key, as a row has it. It equals the key that it is the digest of."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        same = str.__eq__(self, other)
        return bool(same) or (isinstance(other, str) and str.__eq__(self, digest_of(other)))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def digest_of(key: str) -> StoredKey:
    """Return what rows hold of a key: 160 bits of its SHA-256. What comes from a row is returned as it is."""
    if isinstance(key, StoredKey):
        return key
    return StoredKey(hashlib.sha256(_DOMAIN + key.encode()).hexdigest()[:_DIGITS])


class DigestedKey(CharField):  # type: ignore[type-arg]
    """The column of a session's key: written, and looked up, as its digest."""

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else str.__str__(digest_of(value))

    def from_db_value(self, value: Any, *_: Any) -> Any:
        return None if value is None else StoredKey(value)

    def deconstruct(self) -> Any:
        """Be the other package's column for migrations: the database knows no difference."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs


def digest_keys() -> None:
    """Have both tables of sessions hold digests: Django's, and allauth's list of a person's sessions."""
    for model in (Session, UserSession):
        model._meta.get_field("session_key").__class__ = DigestedKey


class SessionStore(db.SessionStore):
    """Django's sessions in the database, whose data is signed for their own row."""

    @property
    def key_salt(self) -> str:
        """Name the row in what is signed."""
        return f"intarsia.session.{digest_of(self._get_or_create_session_key())}"  # type: ignore[attr-defined]
