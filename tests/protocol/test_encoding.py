"""Bytes as text: one spelling each, everything else refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import body_sha256, canonical_json, decode_base64url, encode_base64url
from protocol.errors import ProtocolError


@given(st.binary(max_size=100))
def test_bytes_survive_and_have_one_spelling(data: bytes) -> None:
    text = encode_base64url(data)
    assert "=" not in text and decode_base64url(text) == data
    for other in (text + "=", base64.b64encode(data).decode() + "====", " " + text, text + "\n"):
        with pytest.raises(ProtocolError):
            decode_base64url(other)


@pytest.mark.parametrize("text", ["A", "AB+/", "A===", "é", "AB", "AAB"])
def test_base64url_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_base64url(text)


def test_a_body_hash_is_43_characters() -> None:
    assert body_sha256(b"") == "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"


def test_canonical_json_does_not_depend_on_order_and_refuses_what_json_has_not() -> None:
    assert canonical_json({"b": 1, "a": "ß"}) == canonical_json({"a": "ß", "b": 1}) == '{"a":"ß","b":1}'.encode()
    with pytest.raises(ValueError, match=r"not JSON compliant|Out of range"):
        canonical_json({"a": float("nan")})
