"""One try of one call in an organization's name; whoever asks decides when the next try is.

A call is known by its name: made again within 24 hours it gets the first answer and pays nothing (docs/replays.md).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson
from django.conf import settings

from marketplace.accounts.models import ApiKey
from marketplace.accounts.run_tokens import LIFETIME_SECONDS, issue_run_token
from protocol.messages import PREDICTION_EXTRA_KEY

if TYPE_CHECKING:
    import httpx

_RENEW_SECONDS = LIFETIME_SECONDS / 2
_MOST_WAIT = 60.0
_KEY_ENDED: Final = {"invalid_api_key", "revoked_api_key", "expired_api_key", "scope_missing"}
_NO_ROOM: Final = {"budget_exceeded", "insufficient_funds"}


@dataclass(frozen=True, slots=True, repr=False)
class Posted:
    """An answer of the API to one try. `cost_nano_usd` and `prediction_id` are those of an answer that was paid."""

    status: int
    body: dict[str, Any]
    request_id: str = ""
    retry_after: float = 0.0
    prediction_id: UUID | None = None
    cost_nano_usd: int = 0

    @property
    def code(self) -> str:
        """Return the code of a refusal."""
        error = self.body.get("error")
        return str(error.get("code") or "refused") if isinstance(error, dict) else "refused"

    @property
    def answered(self) -> bool:
        return self.status == 200

    @property
    def busy(self) -> bool:
        """Return whether the same call is to be tried again: nothing is decided yet."""
        if self.status == 200:
            return not self.body.get(PREDICTION_EXTRA_KEY, {}).get("settled", True)  # its cost is not in the books yet
        return self.code == "in_progress" or (not self.no_room and (self.status == 429 or self.status >= 500))

    @property
    def no_room(self) -> bool:
        """Return whether credit or a budget cannot cover the call now."""
        return self.status == 402 or self.code in _NO_ROOM

    @property
    def key_ended(self) -> bool:
        return self.status == 401 or self.code in _KEY_ENDED


AWAY = Posted(503, {"error": {"code": "unavailable", "message": "The platform gave no answer."}})


class Poster:
    """A context manager for the threads of one worker. They touch no database."""

    def __init__(self, *, seconds: float, connections: int) -> None:
        """Give each try `seconds` for its answer, over at most `connections` at once."""
        import httpx  # a worker's: the web process knows this module, and stays light

        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        # No proxy of the environment: prompts go to the platform's own address alone.
        self._client = httpx.Client(base_url=settings.ENV.api_url, timeout=seconds, trust_env=False, limits=limits)
        self._tokens: dict[UUID, tuple[str, float]] = {}
        self._turn = threading.Lock()

    def __enter__(self) -> Poster:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def post(self, *, key: ApiKey, path: str, name: str, body: bytes) -> Posted:
        """Make the call once, in the name of `key`. A platform that is away answers `AWAY`."""
        import httpx

        headers = {
            "authorization": f"Bearer {self._token(key)}",
            "content-type": "application/json",
            "idempotency-key": name,
        }
        try:
            answer = self._client.post(path, content=body, headers=headers)
            return _read(answer)
        except (httpx.TransportError, orjson.JSONDecodeError):
            return AWAY

    def _token(self, key: ApiKey) -> str:
        with self._turn:
            token, made = self._tokens.get(key.pk, ("", 0.0))
            if not token or time.monotonic() - made > _RENEW_SECONDS:
                token = issue_run_token(key=key)
                self._tokens[key.pk] = token, time.monotonic()
            return token


def _read(answer: httpx.Response) -> Posted:
    body = orjson.loads(answer.content)
    about = body.get(PREDICTION_EXTRA_KEY) if answer.status_code == 200 else None
    wish = answer.headers.get("retry-after", "")
    return Posted(
        status=answer.status_code,
        body=body,
        request_id=answer.headers.get("x-request-id", ""),
        retry_after=min(float(wish), _MOST_WAIT) if wish.isdigit() else 0.0,
        prediction_id=UUID(about["prediction_id"]) if about else None,
        cost_nano_usd=int((body.get("usage") or {}).get("cost_nano_usd") or 0) if about else 0,
    )
