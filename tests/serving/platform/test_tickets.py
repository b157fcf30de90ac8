"""Tickets: each way in which one may be wrong is refused, and a right one works once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import body_sha256, encode_base64url
from protocol.tickets import Ticket
from protocol.version import PROTOCOL_VERSION
from serving.platform.errors import TicketRefused, TooManyTickets
from serving.platform.tickets import PRESENTED_WITHIN_S, TicketVerifier

KEY, STRANGER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()
REPLICA, BODY, NOW = str(uuid.uuid4()), b'{"model":"a/b"}', 1_800_000_000.0


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(clock: Clock) -> TicketVerifier:
    made = TicketVerifier(clock, capacity=3)
    made.adopt(REPLICA, {"k1": PUBLIC})
    return made


def claims(**changes: Any) -> dict[str, Any]:
    good = {
        "iss": "intarsia",
        "aud": "serving",
        "protocol_version": PROTOCOL_VERSION,
        "action": "predict",
        "jti": str(uuid.uuid4()),
        "iat": int(NOW),
        "exp": int(NOW) + 60,
        "body_sha256": body_sha256(BODY),
        "replica_id": REPLICA,
        "organization_id": str(uuid.uuid4()),
        "adapter": None,
        "cache_scope": "s",
        "max_prompt_tokens": 10,
        "max_tokens": 10,
    }
    return {name: value for name, value in (good | changes).items() if value is not ...}


def sign(payload: dict[str, Any], key: Any = KEY, algorithm: str = "EdDSA", **header: Any) -> str:
    return jwt.encode(payload, key, algorithm=algorithm, headers={"kid": "k1"} | header)


def by_hand(header: dict[str, Any], payload: dict[str, Any], secret: bytes | None) -> str:
    parts = [encode_base64url(json.dumps(p).encode()).encode() for p in (header, payload)]
    signed = b".".join(parts)
    mac = b"" if secret is None else hmac.new(secret, signed, hashlib.sha256).digest()
    return signed.decode() + "." + encode_base64url(mac)


def refuse(verifier: TicketVerifier, token: str | None, why: str, body: bytes = BODY) -> None:
    with pytest.raises(TicketRefused, match=why):
        verifier.verify(token, body, action="predict")


def test_a_good_ticket_is_read_and_works_once(verifier: TicketVerifier) -> None:
    token = sign(claims(adapter="ab" * 32))
    ticket = verifier.verify(token, BODY, action="predict")
    assert isinstance(ticket, Ticket) and ticket.adapter == "ab" * 32 and ticket.max_tokens == 10
    refuse(verifier, token, "used before")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": int(NOW) - 1}, "expired"),
        ({"exp": int(NOW)}, "expired"),
        ({"exp": int(NOW) + 10 * 86400}, "believable"),
        ({"iat": int(NOW) + 3600}, "believable"),
        ({"replica_id": str(uuid.uuid4())}, "another replica"),
        ({"action": "revoke"}, "allows 'revoke'"),
        ({"iss": "replica"}, "from the platform"),
        ({"aud": "gateway"}, "from the platform"),
        ({"body_sha256": body_sha256(b"{}")}, "another body"),
        ({"jti": "not a uuid"}, "does not verify"),
        ({"jti": ...}, "does not verify"),
        ({"exp": ...}, "does not verify"),
        ({"exp": "soon"}, "does not verify"),
        ({"max_tokens": "many"}, "does not verify"),
        ({"admin": True}, "does not verify"),
        ({"action": "predict "}, "does not verify"),
        ({"max_tokens": True}, "does not verify"),
        ({"adapter": "../x"}, "does not verify"),
        ({"attempt": 0}, "does not verify"),
        ({"attempt": 2**15}, "does not verify"),
        ({"protocol_version": ...}, "platform speaks protocol 1, this replica speaks protocol 6: upgrade the platform"),
        ({"protocol_version": 7}, "platform speaks protocol 7, this replica speaks protocol 6: upgrade this replica"),
        ({"protocol_version": "4"}, "does not verify"),
    ],
)
def test_a_ticket_with_one_wrong_claim_is_refused(verifier: TicketVerifier, changes: dict[str, Any], why: str) -> None:
    refuse(verifier, sign(claims(**changes)), why)


def test_a_ticket_for_another_body_is_refused_and_not_spent(verifier: TicketVerifier) -> None:
    token = sign(claims())
    refuse(verifier, token, "another body", body=BODY + b" ")
    verifier.verify(token, BODY, action="predict")


@pytest.mark.parametrize("token", [None, "", "x", "a.b.c", "." * 10, "x" * 5000])
def test_an_invalid_token_is_refused(verifier: TicketVerifier, token: str | None) -> None:
    refuse(verifier, token, "required|does not verify")


def test_a_ticket_of_a_stranger_or_an_unknown_key_is_refused(verifier: TicketVerifier) -> None:
    refuse(verifier, sign(claims(), STRANGER), "does not verify")
    refuse(verifier, sign(claims(), kid="k2"), "not one of the platform's")
    flipped = sign(claims())
    refuse(verifier, flipped[:-3] + ("A" if flipped[-3] != "A" else "B") + flipped[-2:], "does not verify")


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "ES256", "EdDSA "])
def test_the_algorithm_is_pinned(verifier: TicketVerifier, algorithm: str) -> None:
    for secret in (None, PUBLIC, base64.b64encode(PUBLIC)):
        refuse(verifier, by_hand({"alg": algorithm, "kid": "k1", "typ": "JWT"}, claims(), secret), "not EdDSA")


def test_an_unsigned_ticket_that_claims_eddsa_is_refused(verifier: TicketVerifier) -> None:
    refuse(verifier, by_hand({"alg": "EdDSA", "kid": "k1"}, claims(), None), "does not verify")


def test_a_header_that_brings_its_own_key_is_refused(verifier: TicketVerifier) -> None:
    refuse(verifier, sign(claims(), STRANGER, jwk={"kty": "OKP"}), "not EdDSA")


def test_before_registration_every_ticket_is_refused() -> None:
    refuse(TicketVerifier(Clock()), sign(claims()), "not one of the platform's")


def test_after_registering_anew_tickets_for_the_old_identity_are_refused(verifier: TicketVerifier) -> None:
    verifier.adopt(str(uuid.uuid4()), {"k1": PUBLIC})
    refuse(verifier, sign(claims()), "another replica")


def test_a_retired_ticket_key_stops_working(verifier: TicketVerifier) -> None:
    verifier.adopt(REPLICA, {"k2": STRANGER.public_key().public_bytes_raw()})
    refuse(verifier, sign(claims()), "not one of the platform's")
    verifier.verify(sign(claims(), STRANGER, kid="k2"), BODY, action="predict")


def test_the_replay_memory_refuses_when_full_and_forgets_what_expired(verifier: TicketVerifier, clock: Clock) -> None:
    early = sign(claims(exp=int(NOW) + 10))
    for token in (sign(claims(exp=int(NOW) + 1000)), early, sign(claims())):
        verifier.verify(token, BODY, action="predict")
    with pytest.raises(TooManyTickets):
        verifier.verify(sign(claims()), BODY, action="predict")
    clock.now = NOW + 11
    verifier.verify(sign(claims()), BODY, action="predict")
    refuse(verifier, early, "expired")


def test_a_ticket_that_was_kept_is_refused_long_before_its_deadline_and_need_not_be_remembered_until_then(
    verifier: TicketVerifier, clock: Clock
) -> None:
    kept, *spent = (sign(claims(exp=int(NOW) + 300)) for _ in range(4))
    for token in spent:
        verifier.verify(token, BODY, action="predict")
    clock.now = NOW + PRESENTED_WITHIN_S + 1
    refuse(verifier, kept, "expired")
    for token in spent:
        refuse(verifier, token, "expired")
    for _ in range(3):  # the memory has room again
        verifier.verify(sign(claims(iat=int(clock.now), exp=int(clock.now) + 300)), BODY, action="predict")


def test_a_ticket_is_not_good_again_when_the_clock_steps_back(verifier: TicketVerifier, clock: Clock) -> None:
    spent = sign(claims(exp=int(NOW) + 10))
    verifier.verify(spent, BODY, action="predict")
    clock.now = NOW + 3600
    verifier.verify(
        sign(claims(iat=int(NOW) + 3600, exp=int(NOW) + 3660)), BODY, action="predict"
    )  # the spent one is forgotten
    clock.now = NOW
    refuse(verifier, spent, "expired")
    refuse(verifier, sign(claims(exp=int(NOW) + 10)), "expired")
    verifier.verify(sign(claims(exp=int(NOW) + 70)), BODY, action="predict")  # new tickets are taken all the same


def test_the_ticket_of_a_prediction_that_was_cancelled_before_it_came_is_refused(verifier: TicketVerifier) -> None:
    early, other = claims(), claims()
    verifier.void(early["jti"])
    refuse(verifier, sign(early), "used before")
    verifier.verify(sign(other), BODY, action="predict")
    verifier.void(other["jti"])
    refuse(verifier, sign(other), "used before")


def test_one_replica_runs_a_prediction_once_whatever_the_attempt(verifier: TicketVerifier) -> None:
    first = claims(attempt=1)
    assert verifier.verify(sign(first), BODY, action="predict").attempt == 1
    refuse(verifier, sign(first | {"attempt": 2}), "used before")
