"""HTTP to the platform: time and size limits, retries, the error envelope."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from creator_cli.errors import ApiError, CliError, NetworkError, NotLoggedIn
from creator_cli.names import is_loopback

# Seconds before each new attempt. Half a minute in all: enough for a restart of the platform.
RETRY_WAITS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
MAX_RETRY_AFTER = 30.0
MAX_ANSWER = 64 << 20  # bytes; a custody chain of 100,000 releases is 40 MB
_TIMEOUT = httpx.Timeout(60.0, connect=10.0, pool=10.0)
_PASSING = frozenset({500, 502, 503, 504})

Body = Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer with a status below 300."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the parsed body; raises CliError if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise CliError("the answer is not JSON: this URL may not be an Intarsia platform") from None


class HangUp:
    """A way to break off requests from another thread: the platform sees its client leave, and charges nothing."""

    _current: ContextVar[HangUp | None] = ContextVar("hang_up", default=None)

    def __init__(self) -> None:
        """Start with no request."""
        self._lock = threading.Lock()
        self._stream: Any = None
        self._pulled = False

    def call(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Do the work in this context: each of its requests, by a client of `single` connections, can be broken off."""
        HangUp._current.set(self)
        return work(*arguments, **named)

    def pull(self) -> None:
        """Break off the request in progress, and every later one."""
        with self._lock:
            self._pulled = True
            stream = self._stream
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # what wakes a thread that reads from it

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        with self._lock:
            if self._pulled:
                raise httpx.ReadError("the request was broken off")
            if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                self._stream = info["return_value"]

    @classmethod
    def extensions(cls) -> dict[str, Any]:
        """Return what a request needs for it."""
        current = cls._current.get()
        return {} if current is None else {"trace": current._trace}


class HttpClient:
    """Requests below `<url>/<root>/` with the token, if there is one. Redirects are never followed."""

    def __init__(
        self, url: str, token: str | None, *, patient: bool = True, root: str = "api/v1", single: bool = False
    ) -> None:
        """With `patient`, retry for half a minute; otherwise try once. `root`: `v1` is the gateway's.

        single: each request has a connection of its own, so that a HangUp ends it and nothing else
        """
        self._root = root
        self._token = token
        self._patient = patient
        self._url = url
        parts = urlsplit(url)
        self._client = httpx.Client(
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_keepalive_connections=0) if single else httpx.Limits(),
            # A proxy must not see plain http, and cannot reach this machine's loopback.
            trust_env=not is_loopback(parts.hostname or ""),
            # Reading the certificate bundle takes longer than a request on loopback. An empty context trusts nothing.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if parts.scheme == "http" else True,
            headers={"User-Agent": "intarsia-cli", "Accept": "application/json"},
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        payload: Any = None,
        params: Mapping[str, str] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> Answer:
        """Send one request and return its answer.

        `repeatable` (by default GET, HEAD and DELETE) allows a retry after a lost connection or a 5xx. A connection
        that was never made and a 429 are always retried.

        Raises ApiError, NetworkError, NotLoggedIn.
        """
        if repeatable is None:
            repeatable = method in ("GET", "HEAD", "DELETE")
        for wait in (*(RETRY_WAITS if self._patient else ()), None):
            try:
                return self._attempt(method, path, payload, params, body, headers)
            except httpx.TransportError as error:
                never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                if wait is None or not (repeatable or never_sent):
                    raise NetworkError(f"{self._url} cannot be reached: {_reason(error)}", hint=_HINT) from None
            except ApiError as error:
                passing = error.status == 429 or (repeatable and error.status in _PASSING)
                if wait is None or not passing:
                    raise
                wait = max(wait, error.retry_after)
                if wait > MAX_RETRY_AFTER:
                    raise
            time.sleep(wait * random.uniform(0.75, 1.25))
        raise AssertionError("the last attempt returns or raises")

    def post_form(self, path: str, fields: Mapping[str, str]) -> tuple[int, Any]:
        """Send a form below the platform's own address, once and without the token; return status and JSON, or None.

        Raises NetworkError.
        """
        request = self._client.build_request("POST", f"{self._url}/{path}", data=dict(fields))
        try:
            response, content = self._send(request)
        except httpx.TransportError as error:
            raise NetworkError(f"{self._url} cannot be reached: {_reason(error)}", hint=_HINT) from None
        try:
            return response.status_code, json.loads(content)
        except (ValueError, RecursionError):
            return response.status_code, None

    def _attempt(
        self,
        method: str,
        path: str,
        payload: Any,
        params: Mapping[str, str] | None,
        body: Body | None,
        headers: Mapping[str, str] | None,
    ) -> Answer:
        sent = dict(headers or {})
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        request = self._client.build_request(
            method,
            f"{self._url}/{self._root}/{path}",
            json=payload,
            params=params,
            content=body() if body else None,
            headers=sent,
            extensions=HangUp.extensions(),
        )
        response, content = self._send(request)
        if response.status_code < 300:
            return Answer(response.status_code, response.headers, content)
        raise _refusal(response, content)

    def _send(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        response = self._client.send(request, stream=True)
        try:
            content = bytearray()
            for part in response.iter_bytes():
                content += part
                if len(content) > MAX_ANSWER:
                    raise CliError(f"the answer is larger than {MAX_ANSWER >> 20} MiB")
        finally:
            response.close()
        return response, bytes(content)


_HINT = "check the connection and the URL (INTARSIA_URL, or intarsia login --url), then run the command again"


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


def _refusal(response: httpx.Response, content: bytes) -> CliError:
    status = response.status_code
    if status < 400:
        target = response.headers.get("Location", "elsewhere")
        return CliError(f"the platform redirects to {target}", hint="intarsia login --url with that address")
    code, message, field = _envelope(content)
    if status == 401 and code in ("http_error", "not_authenticated"):
        return NotLoggedIn("you are not logged in", hint="intarsia login")
    if status >= 500 and (request_id := response.headers.get("X-Request-Id")):
        message = f"{message} (request {request_id})"
    offset = response.headers.get("Upload-Offset", "")
    error = ApiError(
        status,
        code,
        message or f"the platform answered HTTP {status}",
        field=field,
        offset=int(offset) if offset.isascii() and offset.isdigit() else None,
    )
    after = response.headers.get("Retry-After", "")
    error.retry_after = float(after) if after.isascii() and after.isdigit() else 0.0
    return error


def _envelope(content: bytes) -> tuple[str, str, str | None]:
    """Return (code, message, param) of the error envelope, or stand-ins if the body is something else."""
    try:
        error = json.loads(content)["error"]
        field = error.get("param")
        return str(error["code"])[:100], str(error["message"])[:1000], None if field is None else str(field)[:200]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "http_error", "", None
