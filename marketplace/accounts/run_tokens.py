"""Tokens with which the platform itself calls `/v1` under one of an organization's keys, for a run that it asked for.

Pure, like `playground_tokens`. The key's own text is thrown away when it is made, so nobody else calls under it; a
worker that goes on after another one was killed issues itself a new token. The claims beside the key exist
nowhere else: no caller can ask the gateway for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import jwt

from marketplace.accounts.api_keys import PREFIX_LENGTH
from marketplace.accounts.errors import InvalidCredentials
from marketplace.accounts.models import ApiKey
from marketplace.accounts.signed_tokens import TokenKind
from protocol.names import is_digest

PREFIX = "ikr_"
LIFETIME_SECONDS = 600
TOKEN = TokenKind(PREFIX, "run", LIFETIME_SECONDS, ("key", "bare", "teaches", "checkpoint", "measures"))
_KEY_PREFIX = re.compile(rf"[a-z2-7]{{{PREFIX_LENGTH}}}")


@dataclass(frozen=True)
class RunClaims:
    """The key that is charged, by its prefix. `bare_base`: the adapter's weights are left out, its contract is not.

    `teaches`: replicas may draft every customer's answers from this one (docs/speculation.md).
    `checkpoint`: the fingerprint of the one that is to answer, empty for any that the version is cleared for.
    `measures`: the version need not be cleared for it, and nothing is charged (docs/bases.md).
    """

    key_prefix: str
    bare_base: bool
    teaches: bool
    checkpoint: str
    measures: bool


def issue_run_token(
    *, key: ApiKey, bare_base: bool = False, teaches: bool = False, checkpoint: str = "", measures: bool = False
) -> str:
    """Return a bearer token good for `LIFETIME_SECONDS`, and only while `key` is live."""
    claims = {"key": key.prefix, "bare": bare_base, "teaches": teaches}
    return TOKEN.issue({**claims, "checkpoint": checkpoint, "measures": measures})


def verify_run_token(text: str) -> RunClaims:
    """Return the claims of a token from `issue_run_token`. Raises InvalidCredentials."""
    refusal = InvalidCredentials("this is no token of a run of the platform", code="invalid_api_key")
    try:
        claims = TOKEN.verify(text)
    except jwt.InvalidTokenError:
        raise refusal from None
    key, checkpoint = claims["key"], claims["checkpoint"]
    flags = claims["bare"], claims["teaches"], claims["measures"]
    if not all(isinstance(flag, bool) for flag in flags) or not isinstance(key, str) or not _KEY_PREFIX.fullmatch(key):
        raise refusal
    if checkpoint != "" and not (isinstance(checkpoint, str) and is_digest(checkpoint)):
        raise refusal
    return RunClaims(key, claims["bare"], claims["teaches"], checkpoint, claims["measures"])
