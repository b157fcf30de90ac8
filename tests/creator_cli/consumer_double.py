"""The platform's side of consuming, in memory: usage, credit and keys."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from tests.creator_cli.platform_bodies import NOW

KEY = "00000000-0000-0000-0000-000000000009"
OTHER_KEY = "00000000-0000-0000-0000-00000000000a"
CSV = b"prediction_id,model,charged_nano_usd\r\n1,acme/triage,10\r\n2,acme/triage,20\r\n"


def group(day: str, model: str, key: str, cost: int) -> dict[str, Any]:
    return {
        "day": day,
        "model": model,
        "key_id": key,
        "predictions": 1,
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cost_nano_usd": cost,
    }


class Consumption:
    """`predictions` are what `logs` lists, newest first; `asked` are the queries that arrived."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.made: list[dict[str, Any]] = []
        self.revoked: list[str] = []
        self.predictions = [self.prediction(1), self.prediction(0)]
        self.groups = [
            group("2026-01-02", "acme/triage", KEY, 1_000),
            group("2026-01-02", "acme/triage", OTHER_KEY, 500),
            group("2026-01-01", "other/sums", KEY, 20),
        ]

    @staticmethod
    def prediction(number: int) -> dict[str, Any]:
        return {
            "prediction_id": str(uuid.UUID(int=number + 1)),
            "created_at": NOW,
            "model": "acme/triage",
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "cost_nano_usd": 10,
            "refunded": False,
            "finish_reason": "stop",
        }

    def dispatch(self, method: str, path: str, query: str, body: Callable[[], dict[str, Any]]) -> Any:
        """Return (status, value), a file's bytes, a list to page, or None for any other operation."""
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        if method == "GET" and path == "usage/summary":
            self.asked.append(asked)
            return self.groups
        if method == "GET" and path == "usage/csv":
            self.asked.append(asked)
            return CSV
        if method == "GET" and path == "usage":
            return 200, {"results": self.predictions[: int(asked["limit"])], "next": None, "previous": None}
        if method == "GET" and path == "wallet":
            return 200, {"posted_nano_usd": 5 * 10**9, "held_nano_usd": 10**9, "available_nano_usd": 4 * 10**9}
        if method == "GET" and re.fullmatch(r"models/[^/]+/[^/]+/in-use", path):
            block = {"start": "2026-01-02T10:00:00Z", "end": "2026-01-02T11:00:00Z", "calls": 40, "failures": 2}
            return 200, {"version": 1, "blocks": [{**block, "refused": {"rate_limited": 3}}]}
        if method == "GET" and path == "keys":
            return [self._key(KEY, "billing"), self._key(OTHER_KEY, "old") | {"revoked_at": NOW}]
        if method == "POST" and (path == "keys" or re.fullmatch(r"keys/[^/]+/rotate", path)):
            self.made.append(body())
            return 201, {**self._key(KEY, "billing"), "key": f"ik_abcdefghijkl_{uuid.uuid4().hex}"}
        if method == "DELETE" and path in (f"keys/{KEY}", f"keys/{OTHER_KEY}"):
            self.revoked.append(path)
            return 204, None
        return None

    @staticmethod
    def _key(key_id: str, name: str) -> dict[str, Any]:
        return {
            "id": key_id,
            "name": name,
            "scopes": ["predict"],
            "last_used_at": None,
            "expires_at": None,
            "revoked_at": None,
        }
