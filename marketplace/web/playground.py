"""Short-lived tokens with which the playground page calls `/v1` for a signed-in user. No database access."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import jwt
from django.conf import settings

PREFIX = "ikp_"
AUDIENCE = "playground"
LIFETIME_SECONDS = 900


class PlaygroundTokenError(Exception):
    """The token is not ours, malformed or expired; the message is fit to show."""


@dataclass(frozen=True)
class PlaygroundClaims:
    """Who may spend whose money until when (unix seconds)."""

    organization_id: UUID
    user_id: UUID
    expires_at: int


def issue_playground_token(*, user: Any, organization: Any) -> str:
    """A bearer token good for `LIFETIME_SECONDS`; the caller has checked that `user` may spend for `organization`."""
    claims = {
        "aud": AUDIENCE,
        "org": str(organization.pk),
        "sub": str(user.pk),
        "exp": int(time.time()) + LIFETIME_SECONDS,
    }
    return PREFIX + jwt.encode(claims, settings.SECRET_KEY, algorithm="HS256")


def verify_playground_token(text: str) -> PlaygroundClaims:
    """The claims of a token from `issue_playground_token`. Raises PlaygroundTokenError."""
    if not text.startswith(PREFIX) or len(text) > 2048:
        raise PlaygroundTokenError("not a playground token")
    try:
        claims = jwt.decode(
            text[len(PREFIX) :],
            settings.SECRET_KEY,
            algorithms=["HS256"],
            audience=AUDIENCE,
            options={"require": ["aud", "org", "sub", "exp"]},
        )
        return PlaygroundClaims(UUID(claims["org"]), UUID(claims["sub"]), int(claims["exp"]))
    except jwt.ExpiredSignatureError as error:
        raise PlaygroundTokenError("the playground token has expired; reload the page") from error
    except (jwt.InvalidTokenError, ValueError, AttributeError, TypeError) as error:
        raise PlaygroundTokenError("invalid playground token") from error
