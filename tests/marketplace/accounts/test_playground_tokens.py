"""Tokens of the playground page: what they name, how long they live, and which ones are refused."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import jwt
import pytest
import time_machine
from django.conf import settings

from marketplace.accounts.errors import InvalidCredentials
from marketplace.accounts.playground_tokens import issue_playground_token, verify_playground_token

USER = SimpleNamespace(pk=uuid.uuid4())
ORGANIZATION = SimpleNamespace(pk=uuid.uuid4())


def test_a_playground_token_names_user_and_organization() -> None:
    claims = verify_playground_token(issue_playground_token(user=USER, organization=ORGANIZATION))
    assert (claims.user_id, claims.organization_id) == (USER.pk, ORGANIZATION.pk)


def test_a_playground_token_ends_after_fifteen_minutes() -> None:
    with time_machine.travel(1_700_000_000, tick=False) as clock:
        token = issue_playground_token(user=USER, organization=ORGANIZATION)
        clock.shift(899)
        verify_playground_token(token)
        clock.shift(2)
        with pytest.raises(InvalidCredentials):
            verify_playground_token(token)


def test_forged_playground_tokens_are_refused() -> None:
    claims = {"aud": "playground", "org": str(ORGANIZATION.pk), "sub": str(USER.pk), "exp": 2**33}
    key = settings.SECRET_KEY
    forgeries = [
        "",
        "ikp_",
        "ikp_x.y.z",
        "ik_" + jwt.encode(claims, key, algorithm="HS256"),
        "ikp_" + jwt.encode(claims, "another-key-of-thirty-two-characters!!", algorithm="HS256"),
        "ikp_" + jwt.encode({**claims, "aud": "session"}, key, algorithm="HS256"),
        "ikp_" + jwt.encode({**claims, "org": "me"}, key, algorithm="HS256"),
        "ikp_" + jwt.encode({name: claims[name] for name in ("aud", "org", "sub")}, key, algorithm="HS256"),
        "ikp_" + jwt.encode(claims, None, algorithm="none"),
        "ikp_" + "a" * 5000,
    ]
    for forgery in forgeries:
        with pytest.raises(InvalidCredentials):
            verify_playground_token(forgery)
