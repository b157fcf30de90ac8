"""Cross-origin requests: which web pages may read an answer (https://fetch.spec.whatwg.org, section 3.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?")
_SECONDS = "600"


def parse_origins(text: str) -> frozenset[str]:
    """Return the origins in a list such as "https://a.example, https://b.example:8443". Raises ValueError for others.

    There is no wildcard: a page that may call with somebody's key is named.
    """
    found = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
    for origin in found:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} is not an origin such as https://app.example")
    return found


def answer_headers(origin: str, allowed: Iterable[str]) -> dict[str, str]:
    """Return what an answer says to a page of `origin`, the request's Origin: empty where none may call from a page."""
    known = frozenset(allowed)
    if not known:
        return {}
    if origin.lower() not in known:
        return {"Vary": "Origin"}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*", "Vary": "Origin"}


def preflight_headers(origin: str, wanted_headers: str, allowed: Iterable[str]) -> dict[str, str] | None:
    """Return the answer to a browser's question before its request; None where the page may not call."""
    headers = answer_headers(origin, allowed)
    if "Access-Control-Allow-Origin" not in headers:
        return None
    return headers | {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": wanted_headers or "Authorization, Content-Type",
        "Access-Control-Max-Age": _SECONDS,
        "Vary": "Origin, Access-Control-Request-Headers",
    }
