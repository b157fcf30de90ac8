"""Receipts that a dishonest replica may send for a prediction that it was given. None of them may move money.

A lie takes the honest claims, the replica's own key and its id, and returns a token; unless a lie is about the
signature, that key signs it.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Claims = dict[str, Any]
Lie = Callable[[Claims, Ed25519PrivateKey, str], str]
STRANGER = "0b5e7a4e-54f2-4c3c-9a53-6d3f0a1b2c3d"  # an id that no replica and no prediction has


def sign(claims: Claims, key: Ed25519PrivateKey, kid: str) -> str:
    """Sign claims as a replica does."""
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": kid})


def _claiming(**changes: object) -> Lie:
    return lambda claims, key, kid: sign(claims | changes, key, kid)


def _without(*names: str) -> Lie:
    def lie(claims: Claims, key: Ed25519PrivateKey, kid: str) -> str:
        return sign({name: value for name, value in claims.items() if name not in names}, key, kid)

    return lie


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _changed_after_signing(claims: Claims, key: Ed25519PrivateKey, kid: str) -> str:
    head, _, signature = sign(claims, key, kid).split(".")
    return ".".join([head, _part(claims | {"completion_tokens": claims["completion_tokens"] + 1}), signature])


def _list_of_claims(claims: Claims, key: Ed25519PrivateKey, kid: str) -> str:
    signed = f"{_part({'alg': 'EdDSA', 'typ': 'JWT', 'kid': kid})}.{_part([claims])}"
    return signed + "." + base64.urlsafe_b64encode(key.sign(signed.encode())).rstrip(b"=").decode()


def _hmac_with_the_public_key(claims: Claims, key: Ed25519PrivateKey, kid: str) -> str:
    public = key.public_key().public_bytes_raw()
    return jwt.encode(claims, public, algorithm="HS256", headers={"kid": kid})


LIES: dict[str, Lie] = {
    # the signature
    "another key": lambda claims, key, kid: sign(claims, Ed25519PrivateKey.generate(), kid),
    "a signer nobody knows": lambda claims, key, kid: sign(claims, key, STRANGER),
    "a signer that is no id": lambda claims, key, kid: sign(claims, key, "../keys"),
    "no signer": lambda claims, key, kid: jwt.encode(claims, key, algorithm="EdDSA"),
    "no algorithm": lambda claims, key, kid: jwt.encode(claims, None, algorithm="none", headers={"kid": kid}),
    "an HMAC with the public key": _hmac_with_the_public_key,
    "changed after signing": _changed_after_signing,
    "cut short": lambda claims, key, kid: sign(claims, key, kid)[:-9],
    "no token at all": lambda claims, key, kid: "paid in full",
    "too long": _claiming(note="x" * 5000),
    "a list": _list_of_claims,
    # the prediction, its attempt and its replica
    "another prediction": _claiming(jti=STRANGER),
    "a prediction that is no id": _claiming(jti="*"),
    "a later attempt": _claiming(attempt=2),
    "an attempt before the first": _claiming(attempt=0),
    "an attempt as text": _claiming(attempt="1"),
    "no attempt": _without("attempt"),
    "another replica": _claiming(replica_id=STRANGER),
    "no replica": _without("replica_id"),
    "another issuer": _claiming(iss="intarsia"),
    # the model
    "another adapter": _claiming(adapter="ee" * 32),
    "an adapter that is a list": _claiming(adapter=["ee" * 32]),
    "another base": _claiming(base="ef" * 32),
    "no base": _without("base"),
    "another class": _claiming(latency_class="interactive"),
    "a class that does not exist": _claiming(latency_class="tomorrow"),
    # the tokens
    "more prompt than the ticket": _claiming(prompt_tokens=1_000_000),
    "a negative prompt": _claiming(prompt_tokens=-1, cached_tokens=-1),
    "a prompt of 2**53": _claiming(prompt_tokens=2**53),
    "a prompt of 2**63": _claiming(prompt_tokens=2**63),
    "more cached than prompt": _claiming(cached_tokens=11),
    "negative cached tokens": _claiming(cached_tokens=-1),
    "more tokens than the ticket": _claiming(completion_tokens=1_000_000),
    "negative tokens": _claiming(completion_tokens=-5),
    "2**53 tokens": _claiming(completion_tokens=2**53),
    "2**63 tokens": _claiming(completion_tokens=2**63),
    "2**200 tokens": _claiming(completion_tokens=2**200),
    "half a token": _claiming(completion_tokens=1.5),
    "tokens as text": _claiming(completion_tokens="8"),
    "tokens that are true": _claiming(completion_tokens=True),
    "tokens that are null": _claiming(completion_tokens=None),
    "no tokens": _without("completion_tokens"),
    # the rest
    "an unknown way to finish": _claiming(finish_reason="tipped"),
    "a negative duration": _claiming(duration_ms=-1),
    "a first token after the end": _claiming(ttft_ms=10, duration_ms=9),
}


def honest_claims(
    *, prediction: uuid.UUID | str, replica: uuid.UUID | str, adapter: str | None, base: str, latency_class: str
) -> Claims:
    """Return claims that no rule refuses, for a first attempt with at least 10 prompt and 5 completion tokens."""
    return {
        "iss": "replica",
        "jti": str(prediction),
        "attempt": 1,
        "replica_id": str(replica),
        "iat": 1_700_000_000,
        "adapter": adapter,
        "base": base,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "finish_reason": "stop",
        "ttft_ms": 5,
        "duration_ms": 9,
        "latency_class": latency_class,
    }
