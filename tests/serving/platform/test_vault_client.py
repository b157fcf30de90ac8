"""The replica's calls interpret a platform's answers over HTTP."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from protocol.bodies import MAX_MESSAGE_BYTES
from protocol.encoding import encode_base64url
from protocol.replicas import Registration
from protocol.version import PROTOCOL_VERSION
from serving.platform.errors import LeaseRefused, ProtocolViolation, SessionRefused, VaultUnreachable
from serving.platform.vault_client import VaultClient

KEY = encode_base64url(bytes(32))
REGISTERED: dict[str, Any] = {
    "protocol_version": PROTOCOL_VERSION,
    "replica_id": str(uuid.uuid4()),
    "session_token": "session",
    "vault_public_key": KEY,
    "ticket_keys": {"k": KEY},
    "heartbeat_seconds": 2,
    "lease_seconds": 30,
}
REGISTRATION = Registration(
    protocol_version=PROTOCOL_VERSION,
    name="r",
    url="http://127.0.0.1:1",
    base="ab" * 32,
    hpke_public_key=KEY,
    receipt_public_key=KEY,
    nonce=KEY,
    evidence={"kind": "none"},
    role="both",
    transfer_url="",
    signature=encode_base64url(bytes(64)),
    identity_signature=encode_base64url(bytes(64)),
)


class Platform:
    """Gives every call the same answer."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        self.tokens: list[str | None] = []
        platform = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                platform.tokens.append(self.headers["authorization"])
                self.send_response(platform.status)
                self.send_header("content-length", str(len(platform.body)))
                self.end_headers()
                self.wfile.write(platform.body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.client = VaultClient(f"http://127.0.0.1:{self.server.server_port}")

    def answer(self, fields: Any, status: int = 200) -> None:
        self.status, self.body = status, json.dumps(fields).encode()

    def close(self) -> None:
        self.client.close()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def platform() -> Iterator[Platform]:
    made = Platform()
    yield made
    made.close()


def test_a_registration_gives_the_session_of_later_calls(platform: Platform) -> None:
    platform.answer(REGISTERED)
    assert str(platform.client.register(REGISTRATION).replica_id) == REGISTERED["replica_id"]
    platform.answer({})
    with pytest.raises(ProtocolViolation):
        platform.client.lease(["ab" * 32], "serve")
    assert platform.tokens == [None, "Bearer session"]


@pytest.mark.parametrize(
    "answer",
    [
        {name: value for name, value in REGISTERED.items() if name != "protocol_version"},
        REGISTERED | {"protocol_version": 1},
        {"protocol_version": PROTOCOL_VERSION + 1, "session": {"id": 7}},
    ],
)
def test_a_platform_of_another_protocol_is_refused_with_both_versions(platform: Platform, answer: Any) -> None:
    theirs = answer.get("protocol_version", 1)
    platform.answer(answer)
    with pytest.raises(ProtocolViolation, match=rf"platform speaks protocol {theirs}, .* protocol {PROTOCOL_VERSION}"):
        platform.client.register(REGISTRATION)
    assert platform.client.session_token == ""


@pytest.mark.parametrize(
    "changes",
    [{"protocol_version": True}, {"replica_id": "r"}, {"ticket_keys": {"k": 1}}, {"lease_seconds": None}],
)
def test_a_malformed_registration_is_no_session(platform: Platform, changes: dict[str, Any]) -> None:
    platform.answer(REGISTERED | changes)
    with pytest.raises(ProtocolViolation, match="not what the protocol says"):
        platform.client.register(REGISTRATION)
    assert platform.client.session_token == ""


def test_a_refusal_is_told_from_an_outage(platform: Platform) -> None:
    platform.client.session_token = "session"
    for status, code, error in (
        (401, "session_refused", SessionRefused),
        (403, "release_denied", LeaseRefused),
        (503, "database", VaultUnreachable),
    ):
        platform.answer({"error": {"code": code, "message": "no"}}, status)
        with pytest.raises(error, match="no"):
            platform.client.lease(["ab" * 32], "serve")
    platform.answer({"error": "not of the protocol"}, 403)
    with pytest.raises(VaultUnreachable, match="403"):
        platform.client.lease(["ab" * 32], "serve")


def test_an_answer_over_the_limit_is_not_read_to_its_end(platform: Platform) -> None:
    platform.body = b" " * (MAX_MESSAGE_BYTES + 1)
    with pytest.raises(ProtocolViolation, match="too long"):
        platform.client.challenge("r")
