"""One message at a time to any OpenAI-compatible endpoint. It is a stranger's: nothing of ours but the message goes."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from creator_cli.errors import CliError, NetworkError, Refused

_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_MAX_ANSWER = 1 << 20  # bytes
_WAITS = (1.0, 4.0, 16.0)  # seconds before each new attempt
_LONGEST_WAIT = 60.0


class Endpoint:
    """`url` is what clients call the base: https://host/v1. Use it as a context manager. Redirects are not followed."""

    def __init__(self, url: str, *, model: str, key: str | None) -> None:
        """Raises Refused for what is no http address."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise Refused(f"{url} is no address of an API, such as https://host/v1", field="url")
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._model = model
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(timeout=_TIMEOUT, headers=headers)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def ask(self, message: str) -> str:
        """Return the answer to one user message. Raises NetworkError, CliError."""
        body = {"model": self._model, "messages": [{"role": "user", "content": message}], "temperature": 0}
        for wait in (*_WAITS, None):
            try:
                answer = self._client.post(self._url, json=body)
            except httpx.HTTPError as error:
                problem: CliError = NetworkError(f"{self._url} cannot be reached ({type(error).__name__})")
            else:
                if answer.status_code == 200:
                    return _text(answer)
                problem = CliError(f"{self._url} answered {answer.status_code}", code="endpoint")
                if answer.status_code != 429 and answer.status_code < 500:
                    raise problem
                wait = _told(answer, wait)
            if wait is None:
                raise problem
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")


def _told(answer: httpx.Response, wait: float | None) -> float | None:
    """Return the time that the answer asks to wait, if it is short; None stays None: no attempt is left."""
    asked = answer.headers.get("retry-after", "")
    return wait if wait is None or not asked.isdigit() else min(float(asked), _LONGEST_WAIT)


def _text(answer: httpx.Response) -> str:
    try:
        found: Any = answer.json() if len(answer.content) <= _MAX_ANSWER else None
        content = found["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        content = None
    if not isinstance(content, str):
        raise CliError("the endpoint's answer is not that of OpenAI's chat completions", code="endpoint")
    return content
