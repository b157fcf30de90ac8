"""The codes are those of RFC 6238, appendix B, cut to six digits."""

from __future__ import annotations

import base64

import pytest

from devstack.totp import totp

SECRET = base64.b32encode(b"12345678901234567890").decode()


@pytest.mark.parametrize(
    ("at", "code"), [(59, "287082"), (1111111109, "081804"), (1234567890, "005924"), (20000000000, "353130")]
)
def test_the_code_is_what_an_authenticator_app_shows(at: float, code: str) -> None:
    assert totp(SECRET, at) == code
