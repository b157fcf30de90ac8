"""The rate of an organization: what is left of it and when it is whole again, in OpenAI's headers too."""

from __future__ import annotations

import uuid

import pytest
from django.conf import settings
from redis.asyncio import Redis

from marketplace.accounts.errors import Refusal
from marketplace.gateway.ratelimit import BURST_SECONDS, RateLimiter


async def test_headers_say_what_is_left_and_when_it_is_whole_again() -> None:
    valkey, organization = Redis.from_url(settings.ENV.valkey_url), uuid.uuid4()
    try:
        limiter = RateLimiter(valkey, 1)
        first = (await limiter.check(organization)).headers()
        assert (first["ratelimit-limit"], first["ratelimit-remaining"], first["ratelimit-reset"]) == ("5", "4", "1")
        assert (first["x-ratelimit-limit-requests"], first["x-ratelimit-remaining-requests"]) == ("5", "4")
        assert 0 < int(first["x-ratelimit-reset-requests"].removesuffix("ms")) <= 1_000
        for _ in range(BURST_SECONDS - 1):
            last = await limiter.check(organization)
        assert last.headers()["ratelimit-remaining"] == "0" and 4 <= int(last.headers()["ratelimit-reset"]) <= 5
        with pytest.raises(Refusal) as refused:
            await limiter.check(organization)
        headers = refused.value.headers
        assert (refused.value.status, headers["retry-after"], headers["ratelimit-remaining"]) == (429, "1", "0")
        assert 4 <= int(headers["ratelimit-reset"]) <= 5
        assert (await limiter.check(uuid.uuid4())).remaining == 4, "another organization has its own"
    finally:
        await valkey.aclose()
