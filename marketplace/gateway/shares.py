"""The pools of the gateway that organizations share, and what it answers where one has no place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from marketplace.accounts.errors import Refusal
from marketplace.gateway.errors import unavailable
from protocol.shares import Bound, Full, Late, declared

BODY_SECONDS = 30.0
UPLOAD_SECONDS = 600.0

# A body that came with its head holds its place for no time: only those that trickle fill a share.
BODIES = declared(Bound("bodies", places=512, share=64, waiting=1_024, seconds=BODY_SECONDS))
# Threads whose statements take milliseconds; what reads whole files has threads of its own, and so have uploads, which
# wait for their clients.
BACKGROUND = declared(Bound("background", places=4, share=2, waiting=64, seconds=20.0))
QUOTES = declared(Bound("quotes", places=2, share=1, waiting=4, seconds=30.0))
UPLOADS = declared(Bound("uploads", places=64, share=4, seconds=UPLOAD_SECONDS + 60.0))  # the body ends first


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raise Refusal where a pool raises Full, 429 or 503, or Late, 503."""
    try:
        yield
    except Full as full:
        if full.own:
            message = "Your organization has as much of this under way as it may have. Try again in a moment."
            raise Refusal(message, code="share_full", status=429, headers={"retry-after": "1"}) from None
        message = "The platform has as much of this under way as it takes. Try again in a moment."
        raise unavailable(message, code="busy") from None
    except Late as late:
        message = "This took too long, so it was stopped. Try again in a moment."
        raise unavailable(message, code="too_slow") from late
