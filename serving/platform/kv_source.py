"""A source of KV: the port on which other replicas pull blocks, over TLS 1.3 (docs/prefill-decode.md).

A thread for each connection: what takes time, TLS and copies, runs beside the interpreter lock. Each waits for the
engine once per run of blocks at most, and holds 8 MiB of memory, or two runs.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protocol.encoding import decode_base64url
from protocol.errors import ProtocolError
from protocol.messages import Answer, ErrorAnswer, ErrorBody, decode, encode
from protocol.pulls import (
    BLOCKS_HEADER,
    CHAIN_PATH,
    MAX_PULL_REQUEST_BYTES,
    PULL_PATH,
    Chain,
    ChainRequest,
    PullRequest,
    pull_proof,
)
from serving.block_copies import wait_for
from serving.engine import Engine
from serving.kv.content import Owner
from serving.platform.errors import PlatformError, TicketRefused
from serving.platform.kv_runs import RunMemories, run_blocks
from serving.platform.kv_tls import source_context
from serving.platform.leases import LeaseTable
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier
from serving.scheduler.exchange import Copied

log = logging.getLogger(__name__)

Asked = TypeVar("Asked", PullRequest, ChainRequest)

MAX_CONNECTIONS = 16
SOCKET_SECONDS = 5.0  # of a handshake, and of a peer that neither sends nor takes
CONNECTION_SECONDS = 30.0  # of a whole pull: longer than any reader waits
ENGINE_SECONDS = 5.0  # the longest wait for the engine's next step

_POLL_SECONDS = 0.1  # between two looks whether it is to end


class KvSource:
    """Lends blocks to the readers that the platform's tickets name. `start` once, `close` at the end.

    layout: what the bytes of blocks depend on, the program's build included; another one is refused
    """

    def __init__(
        self,
        engine: Engine,
        tickets: TicketVerifier,
        leases: LeaseTable,
        signer: ReceiptSigner,
        layout: str,
        listener: socket.socket,
    ) -> None:
        self.engine, self.tickets, self.leases, self.layout = engine, tickets, leases, layout
        self.context, self.certificate = source_context(signer)
        self.memories = RunMemories()
        self._server = _Server(self, listener)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="kv-source", daemon=True
        )

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop; transfers that run end with their connection."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(SOCKET_SECONDS)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, source: KvSource, listener: socket.socket) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listener, listener.getsockname()
        self.source = source
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        listener.listen(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):  # a reader computes instead of waiting in line
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(SOCKET_SECONDS)
            with self.source.context.wrap_socket(request, server_side=True) as secured:
                limit = threading.Timer(CONNECTION_SECONDS, _cut_off, [secured])
                limit.daemon = True
                limit.start()
                try:
                    self.finish_request(secured, client_address)
                finally:
                    limit.cancel()
        except OSError as error:  # ssl.SSLError is one
            log.info("a pull's connection ended: %s", type(error).__name__)
        except Exception:
            log.exception("a pull failed")
        finally:
            self.shutdown_request(request)
            self._room.release()


def _cut_off(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection, which carries one pull."""

    protocol_version = "HTTP/1.1"
    timeout = SOCKET_SECONDS
    server: _Server

    def do_POST(self) -> None:
        self.close_connection = True
        try:
            if self.path == PULL_PATH:
                self._lend(self._read(PullRequest))
            elif self.path == CHAIN_PATH:
                self._tell(self._read(ChainRequest))
            else:
                raise _Refused(404, "not_found", "there is nothing here")
        except _Refused as refusal:
            log.warning("a pull was refused: %s", refusal)
            self._answer(refusal.status, ErrorAnswer(ErrorBody(refusal.code, str(refusal))))

    def _lend(self, request: PullRequest) -> None:
        source, owner = self.server.source, self._owner(request, "pull")
        try:
            keys = [decode_base64url(key) for key in request.keys]
        except ProtocolError as error:
            raise _Refused(400, "bad_request", str(error)) from None
        lending = _Lending(source, owner, keys)
        try:
            count = lending.begin()
            self.send_response(200)
            self.send_header("content-type", "application/octet-stream")
            self.send_header("content-length", str(count * source.engine.planner.exchange.block_bytes))
            self.send_header(BLOCKS_HEADER, str(count))
            self.end_headers()
            lending.send(self.connection)
        finally:
            lending.close()

    def _tell(self, request: ChainRequest) -> None:
        owner, key = self._owner(request, "chain"), decode_base64url(request.key)
        chain = _in_engine(self.server.source.engine.exchange(lambda exchange: exchange.chain(owner, key)))
        self._answer(200, Chain(*chain))

    def _read(self, kind: type[Asked]) -> Asked:
        length = self.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or int(length) > MAX_PULL_REQUEST_BYTES:
            raise _Refused(413, "too_large", f"a pull asks with at most {MAX_PULL_REQUEST_BYTES} bytes")
        try:
            return decode(self.rfile.read(int(length)), kind)
        except ProtocolError as error:
            raise _Refused(400, "bad_request", str(error)) from None

    def _owner(self, request: PullRequest | ChainRequest, use: str) -> Owner:
        """Return whose blocks the request may have; its ticket is spent for this use. Raises _Refused."""
        source = self.server.source
        if request.layout != source.layout:
            raise _Refused(409, "other_layout", "the two replicas lay out KV in different ways")
        try:
            ticket = source.tickets.verify_pull(request.ticket, lends=use)
            reader = Ed25519PublicKey.from_public_bytes(decode_base64url(ticket.reader_key))
            reader.verify(decode_base64url(request.proof), pull_proof(request.ticket, source.certificate))
        except TicketRefused as error:
            raise _Refused(401, error.code, str(error)) from None
        except PlatformError as error:
            raise _Refused(503, error.code, str(error)) from None
        except (InvalidSignature, ProtocolError, ValueError):
            why = "the request is not signed by the reader that the ticket names"
            raise _Refused(401, "invalid_proof", why) from None
        if not _may_lend(source, ticket.adapter):
            raise _Refused(403, "adapter_revoked", "this replica holds no lease on the adapter")
        return ticket.cache_scope, ticket.adapter

    def _answer(self, status: int, message: Answer) -> None:
        body = encode(message)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "intarsia"

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: refusals are logged where they are made."""


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Lending:
    """The blocks of one answer, run by run: while one is sent, the engine copies the next; where it is busy, as many as
    there is memory for. `close` at the end."""

    def __init__(self, source: KvSource, owner: Owner, keys: list[bytes]) -> None:
        self._source, self._owner, self._keys = source, owner, keys
        exchange = source.engine.planner.exchange
        self._bytes = exchange.block_bytes
        self._each = run_blocks(exchange.block_bytes, exchange.block_tokens)
        self._memory = source.memories.take(self._each * self._bytes)
        self._coming = deque[tuple[Future[Copied], memoryview]]()
        self._asked, self._ahead = 0, 1

    def begin(self) -> int:
        """Have the first run copied; return how many of the first blocks are here for this owner."""
        owner, keys = self._owner, self._keys
        counted = self._source.engine.exchange(lambda exchange: exchange.has(owner, keys))
        self._copy()  # within the same turn of the engine
        self._keys = keys[: _in_engine(counted)]
        return len(self._keys)

    def send(self, connection: socket.socket) -> None:
        """Send the blocks, up to the first that is gone; the connection then ends before the promised length."""
        for start in range(0, len(self._keys), self._each):
            while self._asked < len(self._keys) and len(self._coming) <= self._ahead and self._copy():
                pass
            coming, run = self._coming[0]
            if start and not coming.done():  # the engine is busy: it is to do more in its next turn
                self._ahead *= 2
            copied = _in_engine(coming)
            wait_for(copied.ended)
            if not _may_lend(self._source, self._owner[1]):
                return
            connection.sendall(run[: copied.blocks * self._bytes])
            if copied.blocks < min(self._each, len(self._keys) - start):
                return
            self._coming.popleft()
            self._memory.give(run)

    def close(self) -> None:
        """Wipe the memory once nothing writes to it. Where that is not known, no other pull gets it."""
        try:
            while self._coming:
                wait_for(_in_engine(self._coming[0][0]).ended)
                self._coming.popleft()
        except Exception as error:
            log.warning("copies of a pull did not end: %s", type(error).__name__)
        finally:
            self._memory.wipe()
            if not self._coming:
                self._source.memories.give(self._memory)

    def _copy(self) -> bool:
        """Have the engine copy the next run. Returns False where all memory is in use."""
        keys, run = self._keys[self._asked : self._asked + self._each], self._memory.take()
        if run is None:
            return False
        self._asked += len(keys)
        lent = self._source.engine.exchange(lambda exchange: exchange.lend(self._owner, keys, run))
        self._coming.append((lent, run))
        return True


def _may_lend(source: KvSource, adapter: str | None) -> bool:
    """Return whether KV that this adapter wrote may leave: its lease is alive. The base needs none."""
    return adapter is None or source.leases.is_live(adapter)


def _in_engine(future: Future[Any]) -> Any:
    return future.result(ENGINE_SECONDS)
