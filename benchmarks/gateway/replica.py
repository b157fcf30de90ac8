"""A replica without an engine: it reads tickets, answers at once, signs receipts and keeps them for its journal.

    python -m benchmarks.gateway.replica PORT   # the receipt key, 32 bytes in hex, on standard input

It checks the replica, the body's hash and that no ticket comes twice, but not the ticket's signature: the real replica
does that on a machine of its own. A request without a ticket gets the same answer without a receipt, for peers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import msgspec
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import body_sha256, decode_base64url
from protocol.latency import LatencyClass
from protocol.messages import PREDICTION_EXTRA_KEY
from protocol.receipts import Receipt, sign_receipt
from protocol.tickets import TICKET_HEADER

TEXT = "The answer is 42."
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": TEXT}}
ANSWER = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stub", "choices": [CHOICE]}
PLAIN = json.dumps(ANSWER | {"usage": USAGE}).encode()
BASE = "ab" * 32  # the fingerprint that receipts name

_TICKET = f"\r\n{TICKET_HEADER}: ".encode()
_LENGTH = b"\r\ncontent-length: "


class _Ticket(msgspec.Struct):
    jti: str
    replica_id: str
    body_sha256: str
    attempt: int = 1
    adapter: str | None = None
    latency_class: LatencyClass = "standard"


class Replica:
    """The state of one stub: its key and the receipts it gave."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self.key = key
        self.receipts: dict[str, str] = {}

    def answer(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return status and JSON body for a request."""
        lower = head.lower()
        if lower.startswith(b"post /admin/journal "):
            return b"200 OK", self._journal(body)
        if lower.startswith(b"post /admin/"):
            return b"200 OK", b"{}"
        start = lower.find(_TICKET) + len(_TICKET)
        if start < len(_TICKET):
            return b"200 OK", PLAIN
        return self.predict(head[start : head.index(b"\r\n", start)], body)

    def predict(self, token: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Answer one prediction, once."""
        claims = decode_base64url(token.split(b".")[1].decode())
        ticket = msgspec.json.decode(claims, type=_Ticket)
        if ticket.body_sha256 != body_sha256(body) or ticket.jti in self.receipts:
            return b"401 Unauthorized", b'{"error":{"message":"the ticket is for another body, or was used"}}'
        receipt = Receipt(
            jti=ticket.jti,
            attempt=ticket.attempt,
            replica_id=ticket.replica_id,
            iat=int(time.time()),
            adapter=ticket.adapter,
            base=BASE,
            latency_class=ticket.latency_class,
            prompt_tokens=USAGE["prompt_tokens"],
            cached_tokens=4,
            completion_tokens=USAGE["completion_tokens"],
            finish_reason="stop",
            ttft_ms=0,
            duration_ms=0,
        )
        signed = self.receipts[ticket.jti] = sign_receipt(receipt, self.key, signer_id=ticket.replica_id)
        return b"200 OK", PLAIN[:-1] + f', "{PREDICTION_EXTRA_KEY}": {{"receipt": "{signed}"}}}}'.encode()

    def _journal(self, body: bytes) -> bytes:
        states = []
        for asked in json.loads(body)["predictions"]:
            receipt = self.receipts.get(asked["jti"])
            states.append({"state": "final" if receipt else "unknown", "receipt": receipt})
        return json.dumps({"states": states}).encode()


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request after the other."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._data = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[: end + 2]
            lower = head.lower()
            at = lower.find(_LENGTH)
            length = int(lower[at + len(_LENGTH) : lower.index(b"\r\n", at + 2)]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            body, self._data = self._data[end + 4 : end + 4 + length], self._data[end + 4 + length :]
            status, answer = self._replica.answer(head, body)
            lines = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self._transport.write(lines % (status, len(answer)) + answer)


async def _serve(port: int, key: Ed25519PrivateKey) -> None:
    replica = Replica(key)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(replica), "127.0.0.1", port, backlog=2048
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), Ed25519PrivateKey.from_private_bytes(bytes.fromhex(sys.stdin.readline()))))
