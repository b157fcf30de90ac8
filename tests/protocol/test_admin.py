"""Administrative calls: every action has its message, and its ticket covers exactly one body."""

from __future__ import annotations

import uuid
from typing import get_args

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.admin import CALLS, RevokeRequest, Verification
from protocol.encoding import body_sha256
from protocol.messages import encode, to_fields
from protocol.tickets import Action, TicketRejected, admin_ticket, read_ticket, sign_ticket

KEY = Ed25519PrivateKey.generate()
KEYS = {"k": KEY.public_key()}
REPLICA = uuid.uuid4()


def test_every_action_but_a_prediction_is_a_call() -> None:
    assert {"predict", "prefill", *CALLS} == set(get_args(Action))


def test_a_verification_says_its_report_or_its_refusal_alone() -> None:
    assert to_fields(Verification(ok=True, report={"rank": 8})) == {"ok": True, "report": {"rank": 8}}


@pytest.mark.parametrize("action", sorted(CALLS))
def test_a_ticket_is_for_one_replica_and_one_body_for_a_minute(action: Action) -> None:
    body = encode(RevokeRequest(["0a" * 32]))
    claims = admin_ticket(action=action, replica_id=REPLICA, body=body)
    token = sign_ticket(claims, KEY, kid="k")
    ticket = read_ticket(token, KEYS, replica_id=str(REPLICA), now=claims.iat)
    assert ticket == claims and ticket.action == action and ticket.body_sha256 == body_sha256(body)
    assert ticket.organization_id is None and ticket.adapter is None
    for replica, now in ((str(uuid.uuid4()), claims.iat), (None, claims.iat), (str(REPLICA), claims.iat + 60)):
        with pytest.raises(TicketRejected):
            read_ticket(token, KEYS, replica_id=replica, now=now)
