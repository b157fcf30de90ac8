"""Requests that were refused, counted in Valkey by the gateway and added to the hours each minute.

The counters are one hash: a field for each version, organization, hour, status, code and
latency class. A batch is renamed before it
is read, has an id of its own, and the id of the last batch that was added is in the mark: each is added once.
"""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime

from django.conf import settings
from django.db import transaction
from redis import Redis
from redis.exceptions import ResponseError

from marketplace.watch.locks import lock_mark
from marketplace.watch.rollup import Tally, add
from marketplace.watch.sums import SERVER_FAULT
from protocol.latency import LatencyClass

COUNTERS = "watch:refused"
_BATCH = f"{COUNTERS}:batch"
_ID = b"id"
_CODE = re.compile(r"[a-z0-9_]{1,64}")


def field_of(
    version_id: uuid.UUID, organization_id: uuid.UUID, at: datetime, status: int, code: str, latency_class: LatencyClass
) -> str:
    """Return the field that counts such a refusal. A replica's own code may be any text: then it is `other`."""
    code = code if _CODE.fullmatch(code) else "other"
    return f"{version_id}|{organization_id}|{at.astimezone(UTC):%Y-%m-%dT%H}|{status}|{code}|{latency_class}"


def count_refusals() -> int:
    """Add the refusals since the last time; return how many fields they had."""
    with Redis.from_url(settings.ENV.valkey_url, socket_timeout=5, socket_connect_timeout=2) as valkey:
        if not valkey.exists(_BATCH):
            try:
                valkey.rename(COUNTERS, _BATCH)
            except ResponseError:  # there is no such key: nothing was refused
                return 0
        valkey.hsetnx(_BATCH, _ID, str(uuid.uuid4()))
        fields = valkey.hgetall(_BATCH)
        batch = uuid.UUID(fields.pop(_ID).decode())
        _add_once(batch, fields)
        valkey.delete(_BATCH)
    return len(fields)


@transaction.atomic
def _add_once(batch: uuid.UUID, fields: dict[bytes, bytes]) -> None:
    mark = lock_mark()
    if mark.refusals == batch:
        return
    tally = Tally()
    for name, count in fields.items():
        _count(tally, name.decode().split("|"), int(count))
    add(tally)
    mark.refusals = batch
    mark.save(update_fields=["refusals"])


def _count(tally: Tally, parts: list[str], count: int) -> None:
    version, organization, hour, status, code, latency_class = parts
    at = datetime.strptime(hour, "%Y-%m-%dT%H").replace(tzinfo=UTC)
    is_failure = int(status) >= SERVER_FAULT
    # A caller who was refused is no caller of the version: requests that fail count, like calls.
    sums = tally.request(uuid.UUID(version), at, uuid.UUID(organization), count if is_failure else 0)
    sums.failures += count if is_failure else 0
    sums.refused[code] = sums.refused.get(code, 0) + count
    tally.demand.refused(uuid.UUID(version), at, latency_class, code, count)
