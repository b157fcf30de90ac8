"""The numbers of the staff's pages as server-sent events: the fleet, and the platform's counts, every two seconds.

Few streams at once, each of a few minutes (a browser then opens the next); one ends when its session does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import SESSION_KEY
from django.db import close_old_connections
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_safe

from billing.models import Hold, Incident
from marketplace.accounts.models import User
from marketplace.accounts.policies import is_operator
from marketplace.operations.fleet import fleet
from marketplace.operations.pools import pools
from marketplace.operations.shapes import pool_fields, replica_fields
from marketplace.publishing.selectors import queue

MOST_STREAMS = 20  # of one process
TICK_SECONDS = 2.0
STREAM_SECONDS = 600.0
_streams = 0


@require_safe
async def live(request: HttpRequest) -> HttpResponseBase:
    """Stream events `numbers` to a member of staff; whoever is none finds nothing here."""
    if await sync_to_async(_numbers)(request) is None:
        raise Http404("no such page")
    if _streams >= MOST_STREAMS:
        return HttpResponse("Too many streams are open.", status=503, headers={"Retry-After": "30"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(_events(request), content_type="text/event-stream", headers=headers)


async def _events(request: HttpRequest) -> AsyncIterator[bytes]:
    global _streams
    _streams += 1
    try:
        ends = time.monotonic() + STREAM_SECONDS
        yield b"retry: 5000\n\n"
        while time.monotonic() < ends:
            numbers = await sync_to_async(_numbers)(request)
            if numbers is None:
                yield b"event: over\ndata: {}\n\n"
                return
            yield b"event: numbers\ndata: " + json.dumps(numbers).encode() + b"\n\n"
            await asyncio.sleep(TICK_SECONDS)
    finally:
        _streams -= 1


def _numbers(request: HttpRequest) -> dict[str, Any] | None:
    """Return what the pages show, or None once the session has ended or its user is no staff any more."""
    try:
        session = request.session
        fresh = session.__class__(session.session_key)
        user_id = fresh.get(SESSION_KEY)
        user = User.objects.filter(pk=str(user_id)).first() if user_id else None
        if user is None or not is_operator(user=user, key_organization_slug=None):
            return None
        return {
            "pools": [pool_fields(line) for line in pools()],
            "replicas": [replica_fields(line) for line in fleet()],
            "open_holds": Hold.objects.filter(state=Hold.State.OPEN).count(),
            "incidents": Incident.objects.filter(resolved_at=None).count(),
            "reviews": queue().count(),
        }
    finally:
        close_old_connections()  # the thread's, which no request ends
