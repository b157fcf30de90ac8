"""The test door: a `stripe.HTTPClient` that asks the double instead of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import stripe

from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.messages import ConnectionDropped, Request


class DoubleHTTPClient(stripe.HTTPClient):
    """For `StripeClient(key, http_client=DoubleHTTPClient(double))`; the library's own retries, without the waiting."""

    name = "double"

    def __init__(self, double: StripeDouble) -> None:
        super().__init__()
        self._double = double

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        post_data: Any = None,
        *,
        _usage: list[str] | None = None,
    ) -> tuple[str, int, Mapping[str, str]]:
        """Body, status and headers of the double's answer. Raises stripe.APIConnectionError when it drops the call."""
        parts = urlsplit(url)
        request = Request(
            method=method.upper(),
            path=parts.path,
            query=parts.query,
            headers={name.lower(): value for name, value in (headers or {}).items()},
            body=post_data.encode() if isinstance(post_data, str) else post_data or b"",
        )
        try:
            response = self._double.handle(request)
        except ConnectionDropped:
            raise stripe.APIConnectionError(  # type: ignore[no-untyped-call]
                "the double dropped the connection", should_retry=True
            ) from None
        return response.body.decode(), response.status, response.headers

    def _sleep_time_seconds(self, num_retries: int) -> float:
        return 0.0

    def close(self) -> None:
        """Nothing is open."""
