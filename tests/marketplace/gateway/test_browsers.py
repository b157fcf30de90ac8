"""Pages in browsers, and bodies that are compressed: refused or answered before anything is looked up."""

from __future__ import annotations

import dataclasses
import gzip
import os
from typing import Any

import pytest
from django.conf import settings as django_settings

from marketplace.accounts.errors import Refusal
from marketplace.config.env import Env, EnvError
from marketplace.gateway.app import Gateway
from marketplace.gateway.http import MAX_BODY_BYTES, read_body

PAGE = "https://app.example"


async def call(method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Call the gateway without its parts: whatever needs the database fails."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await Gateway()({"type": "http", "method": method, "path": path, "headers": pairs}, receive, send)
    answered = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered


@pytest.fixture
def open_to_the_page(settings: Any) -> None:
    settings.ENV = dataclasses.replace(django_settings.ENV, cors_origins=frozenset({PAGE}))


@pytest.mark.usefixtures("open_to_the_page")
async def test_a_listed_page_may_ask_and_read_answers_and_refusals() -> None:
    asks = {"access_control_request_method": "POST", "access_control_request_headers": "authorization"}
    status, headers = await call("OPTIONS", "/v1/chat/completions", origin=PAGE, **asks)
    assert status == 204 and headers["access-control-allow-headers"] == "authorization"
    for path in ("/v1/nothing", "/v1/embeddings", "/v1/chat/completions"):
        status, headers = await call("GET", path, origin=PAGE)
        assert status in (404, 405) and headers["access-control-allow-origin"] == PAGE


@pytest.mark.usefixtures("open_to_the_page")
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://app.example.evil", "http://app.example"])
async def test_other_pages_may_not(origin: str) -> None:
    status, headers = await call("OPTIONS", "/v1/chat/completions", origin=origin)
    assert status == 403 and "access-control-allow-origin" not in headers
    _, headers = await call("GET", "/v1/nothing", origin=origin)
    assert "access-control-allow-origin" not in headers and headers["vary"] == "Origin"


async def test_no_page_may_call_unless_the_operator_says_so() -> None:
    assert django_settings.ENV.cors_origins == frozenset()
    status, headers = await call("OPTIONS", "/v1/chat/completions", origin=PAGE)
    assert status == 405 and not any(name.startswith("access-control") for name in headers)


def test_the_setting_lists_origins_and_nothing_else() -> None:
    source = {**os.environ, "CORS_ORIGINS": f"{PAGE}, http://localhost:3000"}
    assert Env.load(source).cors_origins == {PAGE, "http://localhost:3000"}
    with pytest.raises(EnvError, match="CORS_ORIGINS"):
        Env.load({**source, "CORS_ORIGINS": "*"})


async def body_of(body: bytes, encoding: str) -> bytes:
    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    return await read_body({"headers": [(b"content-encoding", encoding.encode())]}, receive)


async def test_a_compressed_body_is_read_within_the_limit_or_refused() -> None:
    text = b'{"model": "a/b"}'
    assert await body_of(gzip.compress(text), "gzip") == await body_of(text, "identity") == text
    for body, encoding, status in (
        (text, "br", 415),
        (text, "gzip", 400),
        (gzip.compress(text)[:-4], "gzip", 400),
        (gzip.compress(b"0" * (MAX_BODY_BYTES + 1)), "gzip", 413),
    ):
        with pytest.raises(Refusal) as refused:
            await body_of(body, encoding)
        assert refused.value.status == status
        assert status != 415 or refused.value.headers == {"accept-encoding": "gzip"}
