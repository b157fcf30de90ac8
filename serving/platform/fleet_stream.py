"""The connection of the fleet link: one HTTP/1.1 request whose body and whose answer flow at the same time.

General clients send a whole body before they read an answer; h11 keeps the rules of HTTP and leaves the order to us.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from urllib.parse import urlsplit

import h11

from protocol.bodies import MAX_MESSAGE_BYTES
from protocol.errors import ProtocolError
from protocol.fleet import FLEET_CONTENT_TYPE, FLEET_PATH, FrameReader
from protocol.messages import ErrorAnswer, decode
from protocol.replicas import INTERNAL_PATH
from serving.platform.errors import PlatformError, ProtocolViolation, SessionRefused, VaultUnreachable

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
WRITE_SECONDS = 5.0
_READ_BYTES = 1 << 16


class NoFleetLinks(PlatformError):
    """A platform, or a server of it, that holds no fleet links: heartbeats do."""

    code = "no_fleet_links"


class FleetStream:
    """One open link. Not thread-safe. Every call raises VaultUnreachable when the link is over."""

    def __init__(self, platform_url: str, session_token: str) -> None:
        """Connect and prove the session. Raises SessionRefused, NoFleetLinks, VaultUnreachable, ProtocolViolation."""
        self._frames, self._ready = FrameReader(), deque[bytes]()
        self._http = h11.Connection(h11.CLIENT)
        self._socket = _connect(platform_url)
        try:
            self._open(urlsplit(platform_url).netloc, session_token)
        except BaseException:
            self.close()
            raise

    def send(self, frame: bytes) -> None:
        """Send a frame; blocks for as long as the platform reads nothing, up to five seconds."""
        self._write(self._http.send(h11.Data(frame)))

    def receive(self, seconds: float) -> bytes | None:
        """Return the body of the next frame, None if none came in time."""
        deadline = time.monotonic() + seconds
        while not self._ready:
            event = self._next_event(deadline)
            if event is None:
                return None
            if isinstance(event, h11.Data):
                try:
                    self._ready.extend(self._frames.feed(event.data))
                except ProtocolError as error:
                    raise ProtocolViolation(f"the platform's frame: {error}") from None
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                raise VaultUnreachable("the platform ended the fleet link")
        return self._ready.popleft()

    def close(self) -> None:
        """Close the connection, by which the platform knows that this replica left. Idempotent."""
        self._socket.close()

    def _open(self, host: str, session_token: str) -> None:
        headers = [
            ("host", host),
            ("authorization", f"Bearer {session_token}"),
            ("content-type", FLEET_CONTENT_TYPE),
            ("transfer-encoding", "chunked"),
        ]
        self._write(self._http.send(h11.Request(method="POST", target=INTERNAL_PATH + FLEET_PATH, headers=headers)))
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            event = self._next_event(deadline)
            if event is None:
                raise VaultUnreachable("the platform does not answer the fleet link")
            if isinstance(event, h11.Response):
                break
            if isinstance(event, h11.ConnectionClosed):
                raise VaultUnreachable("the platform closed the fleet link")
        if event.status_code != 200:
            raise self._refusal(event.status_code, deadline)

    def _refusal(self, status: int, deadline: float) -> PlatformError:
        body = bytearray()
        while isinstance(event := self._next_event(deadline), h11.Data) and len(body) < MAX_MESSAGE_BYTES:
            body += event.data
        try:
            error = decode(bytes(body), ErrorAnswer).error
        except ProtocolError:
            return NoFleetLinks(f"the platform answered {status}") if status < 500 else VaultUnreachable(str(status))
        if error.code == "session_refused":
            return SessionRefused(error.message)
        return (
            VaultUnreachable(error.message) if error.code in ("database", "starting") else NoFleetLinks(error.message)
        )

    def _next_event(self, deadline: float) -> h11.Event | None:
        """Return the next event of the answer, None if none came in time."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise VaultUnreachable(f"the platform's answer is not HTTP ({error})") from None
            if isinstance(event, h11.InformationalResponse):
                continue
            if event is h11.PAUSED:
                return h11.EndOfMessage()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            try:
                self._socket.settimeout(left)
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                return None
            except OSError as error:
                raise VaultUnreachable(f"the fleet link broke ({type(error).__name__})") from None
            self._http.receive_data(data)

    def _write(self, data: bytes | None) -> None:
        try:
            self._socket.settimeout(WRITE_SECONDS)
            self._socket.sendall(data or b"")
        except OSError as error:
            raise VaultUnreachable(f"the fleet link broke ({type(error).__name__})") from None


def _connect(platform_url: str) -> socket.socket:
    parts = urlsplit(platform_url)
    tls = parts.scheme == "https"
    assert parts.hostname is not None, "the settings were checked"
    try:
        made = socket.create_connection((parts.hostname, parts.port or (443 if tls else 80)), timeout=CONNECT_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ssl.create_default_context().wrap_socket(made, server_hostname=parts.hostname) if tls else made
    except OSError as error:
        raise VaultUnreachable(f"the platform does not answer ({type(error).__name__})") from None
