"""Short-lived tokens with which the playground page calls `/v1` for a signed-in user.

Pure, like `api_keys`: web issues them and the async gateway checks them, both without the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import jwt

from marketplace.accounts.errors import InvalidCredentials
from marketplace.accounts.signed_tokens import TokenKind

PREFIX = "ikp_"
LIFETIME_SECONDS = 900
TOKEN = TokenKind(PREFIX, "playground", LIFETIME_SECONDS, ("org", "sub"))


@dataclass(frozen=True)
class PlaygroundClaims:
    """The user and the organization whose money they may spend, until `expires_at` (unix seconds)."""

    organization_id: UUID
    user_id: UUID
    expires_at: int


def issue_playground_token(*, user: Any, organization: Any) -> str:
    """Return a bearer token good for `LIFETIME_SECONDS`.

    The caller has checked that `user` may spend for `organization`.
    """
    return TOKEN.issue({"org": str(organization.pk), "sub": str(user.pk)})


def verify_playground_token(text: str) -> PlaygroundClaims:
    """Return the claims of a token from `issue_playground_token`. Raises InvalidCredentials."""
    try:
        claims = TOKEN.verify(text)
        return PlaygroundClaims(UUID(claims["org"]), UUID(claims["sub"]), int(claims["exp"]))
    except jwt.ExpiredSignatureError as error:
        raise _refusal("the playground token has expired; reload the page") from error
    except (jwt.InvalidTokenError, ValueError, AttributeError, TypeError) as error:
        raise _refusal("invalid playground token") from error


def _refusal(message: str) -> InvalidCredentials:
    return InvalidCredentials(message, code="invalid_api_key")
