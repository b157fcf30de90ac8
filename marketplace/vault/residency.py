"""Where adapters are resident, in Valkey: gateways write what links told, staff's pages read it.

Keys are of 64 bits (`routing.key_of`): names come from the leases, which every resident adapter has. What is not
written again within half a minute is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from django.conf import settings
from redis import Redis
from redis.exceptions import RedisError

from routing import KeySet

log = logging.getLogger(__name__)

KEPT_SECONDS = 30


def residents_key(replica_id: UUID) -> str:
    """Return the name under which the packed keys of a boot's resident adapters lie."""
    return f"fleet:residents:{replica_id}"


def read_residents(replica_ids: Sequence[UUID]) -> dict[UUID, KeySet]:
    """Return what boots have in memory, those that told; none while Valkey is away."""
    if not replica_ids:
        return {}
    try:
        with Redis.from_url(settings.ENV.valkey_url, socket_timeout=1, socket_connect_timeout=1) as valkey:
            found = valkey.mget([residents_key(one) for one in replica_ids])
    except RedisError as error:
        log.warning("where adapters are resident is not known: %s", type(error).__name__)
        return {}
    pairs = zip(replica_ids, found, strict=True)
    return {one: KeySet.of_bytes(packed) for one, packed in pairs if packed is not None and len(packed) % 8 == 0}
