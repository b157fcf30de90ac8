"""A reader of KV: pulls what another replica has computed of a prompt, before the prompt is queued.

Whatever goes wrong, the prompt is computed here instead: a pull is never the reason of an error. What it brings is
published under keys that this replica made itself, only for the scope and the adapter of its own prediction.
"""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from http.client import HTTPException, HTTPResponse
from typing import Protocol, cast
from urllib.parse import urlsplit

from protocol.encoding import decode_base64url, encode_base64url
from protocol.errors import ProtocolError
from protocol.messages import ErrorAnswer, decode, encode
from protocol.pulls import (
    BLOCKS_HEADER,
    CHAIN_PATH,
    MAX_CHAIN_BYTES,
    MAX_PULL_KEYS,
    PULL_PATH,
    Chain,
    ChainRequest,
    PullRequest,
    PullTicket,
    pull_proof,
)
from serving.core import AdapterRef, Request, SamplingParams
from serving.engine import Engine
from serving.http.metrics import Gauge
from serving.platform.errors import PullFailed
from serving.platform.kv_receiving import ENGINE_SECONDS, Receiving
from serving.platform.kv_runs import RunMemories
from serving.platform.kv_tls import check_source, reader_context
from serving.platform.receipts import ReceiptSigner
from serving.scheduler.exchange import Arrival

log = logging.getLogger(__name__)

MAX_PULLS = 8  # at once; others wait for their turn, within their own time
CONNECT_SECONDS, SILENT_SECONDS = 1.0, 2.0
LEAST_TOKENS = 64  # fewer are computed sooner than asked for
# A pull may take as long as computing twice, within these limits.
_TIMES, _SHORTEST_SECONDS, _LONGEST_SECONDS = 2.0, 1.0, 10.0
# Weight of the latest pull in the measured rate.
_LATEST = 0.2
_MAX_REFUSAL_BYTES = 4096


class Stream(Protocol):
    """The KV of blocks as it comes: the seam at which another transport would stand in for HTTPS."""

    def readinto(self, out: memoryview) -> int:
        """Fill `out`, or as much of it as there is. Raises OSError."""
        ...

    def interrupt(self) -> None:
        """Let a `readinto` that waits end soon. From any thread, before `close`."""
        ...

    def close(self) -> None:
        """End the transfer."""
        ...


class Transport(Protocol):
    """Opens the streams of pulls."""

    def open(self, ticket: PullTicket, token: str, layout: str, keys: list[bytes]) -> tuple[int, Stream]:
        """Return how many blocks the source has, and the stream of them. Raises PullFailed and OSError."""
        ...

    def chain(self, ticket: PullTicket, token: str, layout: str, key: bytes) -> Chain:
        """Return the tokens up to the block of a key. Raises PullFailed, OSError and ProtocolError."""
        ...


class HttpsTransport:
    """HTTP/1.1 over TLS 1.3. Both sides prove the receipt key of their boot, which the ticket names."""

    def __init__(self, signer: ReceiptSigner) -> None:
        self._signer, self._context = signer, reader_context()

    def open(self, ticket: PullTicket, token: str, layout: str, keys: list[bytes]) -> tuple[int, Stream]:
        """Connect, check the source's certificate, ask."""

        def ask(proof: str) -> bytes:
            return encode(PullRequest(token, proof, layout, [encode_base64url(key) for key in keys]))

        connection = self._asked(ticket, token, PULL_PATH, ask)
        try:
            return _stream_of(connection, len(keys))
        except BaseException:
            connection.close()
            raise

    def chain(self, ticket: PullTicket, token: str, layout: str, key: bytes) -> Chain:
        """Connect, check the source's certificate, ask."""

        def ask(proof: str) -> bytes:
            return encode(ChainRequest(token, proof, layout, encode_base64url(key)))

        with closing(self._asked(ticket, token, CHAIN_PATH, ask)) as connection:
            return decode(_response(connection).read(MAX_CHAIN_BYTES), Chain)

    def _asked(self, ticket: PullTicket, token: str, path: str, ask: Callable[[str], bytes]) -> ssl.SSLSocket:
        """Return a connection to the source, which was sent what `ask` makes of the proof."""
        parts = urlsplit(ticket.source_url)
        if parts.scheme != "https" or parts.hostname is None or parts.port is None:
            raise PullFailed("refused", "the ticket names no source")
        plain = socket.create_connection((parts.hostname, parts.port), CONNECT_SECONDS)
        try:
            plain.settimeout(SILENT_SECONDS)
            secured = self._context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        try:
            certificate = secured.getpeercert(binary_form=True)
            check_source(certificate, decode_base64url(ticket.source_key))
            assert certificate is not None
            proof = self._signer.sign_pull(pull_proof(token, certificate))
            body = ask(proof)
            head = f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: {len(body)}\r\n\r\n"
            secured.sendall(head.encode() + body)
            return secured
        except BaseException:
            secured.close()
            raise


def _response(connection: ssl.SSLSocket) -> HTTPResponse:
    """Return the answer, its body unread. Raises PullFailed for a refusal."""
    response = HTTPResponse(connection, method="POST")
    response.begin()
    if response.status != 200:
        try:
            code = decode(response.read(_MAX_REFUSAL_BYTES), ErrorAnswer).error.code
        except ProtocolError:
            code = "none"
        raise PullFailed("refused", f"the source refuses with {response.status}, {code[:40]}")
    return response


def _stream_of(connection: ssl.SSLSocket, asked: int) -> tuple[int, Stream]:
    response = _response(connection)
    text = response.headers.get(BLOCKS_HEADER, "")
    count = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1
    if not 0 <= count <= asked:
        raise PullFailed("broken", "the source does not say how many blocks it sends")
    return count, _HttpsStream(connection, response)


class _HttpsStream:
    def __init__(self, connection: ssl.SSLSocket, response: HTTPResponse) -> None:
        self._connection, self._response, self._begun = connection, response, False

    def readinto(self, out: memoryview) -> int:
        if self._begun:
            return self._connection.recv_into(out)
        # The bytes that came with the head; then straight from TLS, past the layers of files.
        self._begun, head = True, cast(io.BufferedReader, self._response.fp).peek()
        return self._response.readinto(out[: len(head)])

    def interrupt(self) -> None:
        with suppress(OSError):
            # Not SSLSocket's own, after which a read would return what comes as it is: encrypted.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class KvReader:
    """Brings the KV of prompts from where they were computed. `bring` in the server's event loop.

    outcomes: pulls since start by how they ended: `pulled`, `needless`, or a PullFailed's code
    """

    def __init__(self, engine: Engine, transport: Transport, layout: str) -> None:
        self._engine, self.transport, self.layout = engine, transport, layout
        self._threads = ThreadPoolExecutor(MAX_PULLS, "kv-reader")
        self.outcomes: Counter[str] = Counter()
        self.pull_seconds = 0.0
        self._memories = RunMemories()

    def close(self) -> None:
        """Take no more pulls; those that run end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def bring(self, request: Request, ticket: PullTicket | None, token: str) -> Request:
        """Pull what this replica lacks of a request's prompt, and return the request with the tokens that it had found
        before: those alone count as cached. Without a ticket nothing is pulled."""
        exchange = self._engine.exchange
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                arrival = await asyncio.wrap_future(exchange(lambda one: one.expect(request)))
        except TimeoutError:
            self.outcomes["late"] += 1
            return request
        pull = _Pull(self._engine, self.transport, self.layout, arrival, self._memories)
        try:
            outcome = "needless" if ticket is None else await self._pulled(pull, ticket, token, request)
        finally:
            pull.stop()  # also where the client hung up
            exchange(lambda one: one.finish(arrival))
        self.outcomes[outcome] += 1
        return replace(request, cached_as=arrival.found)

    async def fetch(self, ticket: PullTicket, token: str, key: bytes) -> None:
        """Pull a conversation that another replica hands over, whose last block has this key; log why not."""
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                asked = self._threads.submit(self.transport.chain, ticket, token, self.layout, key)
                chain = await asyncio.wrap_future(asked)
        except Exception as error:
            log.warning("a conversation was not handed over: %s", type(error).__name__)
            self.outcomes["broken"] += 1
            return
        request = _conversation(ticket, chain)
        made = await asyncio.wrap_future(self._engine.exchange(lambda one: one.ends_with(request)))
        if made != key:
            log.warning("a conversation was not handed over: its tokens are others than its key says")
            self.outcomes["broken"] += 1
            return
        await self.bring(request, ticket, token)

    async def _pulled(self, pull: _Pull, ticket: PullTicket, token: str, request: Request) -> str:
        if len(pull.arrival.contents) * self._engine.planner.exchange.block_tokens < LEAST_TOKENS:
            return "needless"
        if self._engine.adapters.is_revoked(digest := request.adapter.digest):
            return "needless"
        if digest is not None:
            self._engine.adapters.hint([digest])  # loaded while the KV comes
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._patience(request)):
                work = self._threads.submit(pull.run, ticket, token)
                await asyncio.wrap_future(work)
            return "pulled" if pull.arrival.placed else "nothing"
        except PullFailed as error:
            log.warning("prediction %s: its prompt is computed here: %s", ticket.jti, error)
            return error.code
        except TimeoutError:
            log.warning("prediction %s: its prompt is computed here: the pull took too long", ticket.jti)
            return "late"
        except Exception as error:
            log.warning("prediction %s: its prompt is computed here: %s", ticket.jti, type(error).__name__)
            return "broken"
        finally:
            self._measured(pull.arrival, time.perf_counter() - began)

    def _measured(self, arrival: Arrival, seconds: float) -> None:
        self.pull_seconds += seconds
        exchange = self._engine.planner.exchange
        if arrival.placed:
            rate, before = arrival.placed * exchange.block_bytes / seconds, exchange.counts.pulled_rate
            exchange.counts.pulled_rate = rate if not before else before + _LATEST * (rate - before)

    def _patience(self, request: Request) -> float:
        planner, digest = self._engine.planner, request.adapter.digest
        rank, rows = planner.accounts.rank(digest), planner.limits.max_batched_tokens
        seconds = planner.costs.prefill_seconds(len(request.prompt_token_ids), rank, rows)
        return min(max(_TIMES * seconds, _SHORTEST_SECONDS), _LONGEST_SECONDS)


def kv_gauges(engine: Engine, reader: KvReader) -> list[Gauge]:
    """Return the gauges of KV that crosses between replicas."""
    counts, outcomes = engine.planner.exchange.counts, reader.outcomes
    return [
        Gauge("kv_blocks_lent", "KV blocks that other replicas pulled, since start", lambda: counts.lent_blocks),
        Gauge("kv_blocks_pulled", "KV blocks pulled from other replicas, since start", lambda: counts.placed_blocks),
        Gauge(
            "kv_pulls_failed",
            "Pulls refused, late or broken, since start: their prompts were computed here",
            lambda: sum(count for outcome, count in outcomes.items() if outcome not in ("pulled", "needless")),
        ),
        Gauge("kv_pull_seconds", "Seconds that pulls took, since start", lambda: reader.pull_seconds),
    ]


def _conversation(ticket: PullTicket, chain: Chain) -> Request:
    """Return a request whose prompt begins with a conversation's blocks, of which none is the last."""
    return Request(
        request_id=ticket.jti,
        tenant="",
        cache_scope=ticket.cache_scope,
        adapter=AdapterRef(ticket.adapter),
        prompt_token_ids=(*chain.tokens, 0),
        sampling=SamplingParams(),
        max_tokens=1,
        shared_tokens=chain.shared_tokens,
    )


class _Pull:
    """One pull in a thread."""

    def __init__(
        self, engine: Engine, transport: Transport, layout: str, arrival: Arrival, memories: RunMemories
    ) -> None:
        self.arrival = arrival
        self._engine, self._transport, self._layout, self._memories = engine, transport, layout, memories
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._stream: Stream | None = None

    def stop(self) -> None:
        """End the transfer, if it runs, and take nothing more. From any thread."""
        self._stopped.set()
        self.arrival.over = True
        with self._lock:
            if self._stream is not None:
                self._stream.interrupt()

    def run(self, ticket: PullTicket, token: str) -> None:
        """Receive the blocks of the arrival. Raises PullFailed; what came before stays."""
        if self._stopped.is_set():
            return
        keys = [content.key for content in self.arrival.contents[:MAX_PULL_KEYS]]
        try:
            count, stream = self._transport.open(ticket, token, self._layout, keys)
        except OSError as error:
            raise PullFailed("unreachable", f"the source cannot be reached: {type(error).__name__}") from None
        except (HTTPException, ProtocolError, ValueError) as error:
            raise PullFailed("broken", f"the source's answer is no answer: {type(error).__name__}") from None
        with closing(stream):
            with self._lock:
                self._stream = stream
            try:
                Receiving(self._engine, self._memories, self.arrival, count, self._stopped).receive(stream.readinto)
            finally:
                with self._lock:
                    self._stream = None
