"""Tokens that the platform signs for itself: short-lived, checked without the database.

The claims are signed, not secret. Each kind has a prefix, by which it is told from API keys, and an audience.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from django.conf import settings

LONGEST = 2048  # characters


@dataclass(frozen=True)
class TokenKind:
    """One kind of token; `claims` are the ones that it must have beside audience and expiry."""

    prefix: str
    audience: str
    lifetime_seconds: int
    claims: tuple[str, ...]

    def issue(self, claims: Mapping[str, Any]) -> str:
        """Return a bearer token with these claims."""
        stated = {"aud": self.audience, "exp": int(time.time()) + self.lifetime_seconds, **claims}
        return self.prefix + jwt.encode(stated, settings.SECRET_KEY, algorithm="HS256")

    def verify(self, text: str) -> dict[str, Any]:
        """Return the claims of a token from `issue`. Raises jwt.InvalidTokenError, ExpiredSignatureError among them."""
        if not text.startswith(self.prefix) or len(text) > LONGEST:
            raise jwt.InvalidTokenError("another prefix, or too long")
        claims: dict[str, Any] = jwt.decode(
            text[len(self.prefix) :],
            settings.SECRET_KEY,
            algorithms=["HS256"],
            audience=self.audience,
            options={"require": ["aud", "exp", *self.claims]},
        )
        return claims
