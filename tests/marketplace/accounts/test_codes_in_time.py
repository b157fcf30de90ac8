"""A code of the authenticator app is good a moment before and after its own half minute, and no longer."""

from __future__ import annotations

import pytest
from allauth.mfa.totp.internal import auth


@pytest.mark.parametrize(("away", "good"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_a_code_of_the_neighbouring_half_minute_is_taken(
    away: int, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = auth.generate_totp_secret()
    monkeypatch.setattr(auth.time, "time", lambda: 1_800_000_000.0)
    shown = auth.format_hotp_value(auth.hotp_value(secret, 1_800_000_000 // 30 + away))
    assert auth.validate_totp_code(secret, shown) is good
